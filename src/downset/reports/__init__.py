"""Turns plans into text and pictures: pure functions from plans to words or SVG."""
