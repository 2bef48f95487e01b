"""Measurements in turns, the processes they run against, result files, tables and charts of the speed benchmark."""
