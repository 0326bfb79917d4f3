"""Text and tokens; labelled files and data sets as a stream of rows."""
