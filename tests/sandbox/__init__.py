"""The sandbox against code that means harm, on each tier."""
