class MlflowException(Exception):
    def __init__(self, message, error_code="INTERNAL_ERROR"):
        super().__init__(message)
        self.error_code = error_code
