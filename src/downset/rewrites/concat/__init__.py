"""Concatenations taken apart (SERENITY's graph rewriting): what reads them is computed part by part."""
