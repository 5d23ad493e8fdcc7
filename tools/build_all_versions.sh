#!/usr/bin/env bash
# Build the documents of this checkout into site/, and those of each tag v* into site/<tag>/, with a list of versions.
set -euo pipefail
cd "$(dirname "$0")/.."
make docs
list="<p><a href=index.html>development</a></p>"
for tag in $(git tag --list 'v*' --sort=-version:refname); do
  copy=$(mktemp -d)
  git archive "$tag" | tar -x -C "$copy"
  make -C "$copy" docs
  cp -r "$copy/site" "site/$tag"
  rm -rf "$copy"
  list+="<p><a href=$tag/index.html>$tag</a></p>"
done
echo "<!doctype html><html lang=en><meta charset=utf-8><title>Versions of silvan's documents</title><h1>Versions</h1>$list" > site/versions.html
