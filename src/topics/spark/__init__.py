"""Reading stores with Spark, or with Arrow alone."""
