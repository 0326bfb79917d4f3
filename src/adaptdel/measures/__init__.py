"""Clean accuracy, certified accuracy, mean certified radius, and the other measures of a report."""
