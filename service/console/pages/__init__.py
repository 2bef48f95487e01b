"""Pages of the console, one module per topic. Each maps paths to functions in `PAGES`."""
