"""What the apps do: launching, exit statuses, error texts, what is on the screen."""
