"""Was this record trained on? Attacks on released models and on the messages of every round."""
