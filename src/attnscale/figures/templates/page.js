// Draws the figures, and sorts a table by a click on a heading. `vegaEmbed` is bundled with it.

const specs = JSON.parse(document.getElementById("specs").textContent);
const options = {
  renderer: "svg",
  actions: { export: true, source: false, compiled: false, editor: false },
};
window.drawn = Promise.all(
  Object.entries(specs).map(([id, spec]) => vegaEmbed("#" + id, spec, options)),
);

/** Compare two cells as numbers if both are, else as text; empty ones come last either way. */
function compare(x, y, ascending) {
  if (x === "" || y === "") return (x === "") - (y === "");
  const numbers = !isNaN(x) && !isNaN(y);
  const order = numbers ? x - y : x.localeCompare(y);
  return ascending ? order : -order;
}

function sort(table, heading) {
  const headings = [...heading.parentElement.children];
  const column = headings.indexOf(heading);
  const ascending = heading.getAttribute("aria-sort") !== "ascending";
  for (const other of headings) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const key = row => row.cells[column].dataset.value;
  const body = table.tBodies[0];
  [...body.rows]
    .sort((a, b) => compare(key(a), key(b), ascending))
    .forEach(row => body.append(row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  table.tHead.addEventListener("click", event => {
    const button = event.target.closest("button");
    if (button) sort(table, button.parentElement);
  });
}
