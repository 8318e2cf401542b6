"""What pages are made of: fields and forms, lists, charts and pictures, questions."""
