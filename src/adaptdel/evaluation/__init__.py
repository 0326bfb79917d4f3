"""Certify a data set; measures, tables, figures, the report."""
