"""The documentation as a site: pages gathered, references made from the code, built strictly, checked afterwards."""
