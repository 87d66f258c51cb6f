"""Several operators merged into one: the merge of IOS, and further exact ones."""
