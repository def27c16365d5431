"""What a person sees of jobs side by side: a line for each, and one for each that ended."""

import sys
from typing import Any

from tqdm import tqdm

from attnscale.config.build import shortened
from attnscale.sweep.forecast import duration
from attnscale.sweep.state import Job

MAX_NAME = 40


def _line(name: str, figures: dict[str, Any]) -> str:
    """Return name, epoch, loss, steps per second and time left, as far as they are known."""
    parts = [shortened(name, MAX_NAME)]
    epoch, epochs = figures.get("epoch"), figures.get("epochs")
    if epoch is not None:
        parts.append(f"epoch {epoch}" + (f"/{epochs}" if epochs else ""))
    parts += [f"{key} {value:.4g}" for key, value in figures.get("losses", {}).items()]
    if figures.get("rate"):
        parts.append(f"{figures['rate']:.3g} steps/s")
    if figures.get("seconds_left") is not None:
        parts.append(f"{duration(figures['seconds_left'])} left")
    return "  ".join(parts)


def outcome_line(job: Job) -> str:
    """Return what a job came to: its name, how it ended, and its objective or its reason."""
    if job.result is None:
        return f"{job.name} {job.status.lower()}: {(job.error or 'no reason').splitlines()[0]}"
    return f"{job.name} {job.status.lower()}, best loss {job.result.objective:.4g}"


class Lines:
    """Live lines on a terminal, one per place; without a terminal only what :meth:`say` prints."""

    def __init__(self, places: int) -> None:
        """Open a line for each place where a job can run."""
        self._bars = [
            tqdm(
                bar_format="{desc}",
                position=i,
                leave=False,
                disable=None,
                dynamic_ncols=True,
                file=sys.stderr,
            )
            for i in range(places)
        ]

    def show(self, place: int, name: str, figures: dict[str, Any]) -> None:
        """Show how far the job at a place is."""
        self._bars[place].set_description_str(_line(name, figures))

    def clear(self, place: int) -> None:
        """Show nothing at a place."""
        self._bars[place].set_description_str("")

    def say(self, text: str) -> None:
        """Print a line that stays."""
        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        """Take the lines away."""
        for bar in reversed(self._bars):
            bar.close()
