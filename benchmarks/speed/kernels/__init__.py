"""Speed of kernels and of whole algorithms, against other libraries."""
