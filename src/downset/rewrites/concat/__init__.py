"""Concatenations taken apart (SERENITY's graph rewriting): their readers are computed part by part."""
