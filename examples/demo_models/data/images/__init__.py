"""Pictures of colored shapes, and questions about them."""
