"""The clients' records on the device that trains them."""
