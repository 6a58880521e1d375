"""Programs that maintain the repository; not part of the product."""
