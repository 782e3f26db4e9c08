"""Exports of a run for other programs: ONNX, FAISS, and Parquet with vectors."""
