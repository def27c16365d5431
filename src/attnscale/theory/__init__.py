"""Theory: what q·k and its softmax do, in closed form and simulated."""
