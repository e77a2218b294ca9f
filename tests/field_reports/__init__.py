"""What broke in schedulers like this one, where no rule's own tests have it already."""
