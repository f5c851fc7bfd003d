"""Collection: batched inference for the slots that are ready, and the state of every slot."""
