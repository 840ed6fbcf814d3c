#!/bin/sh
# Installs the documentation so that its links work outside of the repository:
# packaging/debian/install-docs.sh REPOSITORY DIRECTORY
#
# Pages that include a file of the repository's root become that file. A link to a file that is not installed
# becomes its text.
set -eu
root=$1
out=$2
# Files of the root, which pages with these names include.
names='README:introduction CHANGELOG:changelog ARCHITECTURE:architecture CONTRIBUTING:contributing SECURITY:security'
to_pages=
for name in $names; do
    to_pages="$to_pages;s#](${name%%:*}\\.md#](${name#*:}.md#g;s#](\\.\\./${name%%:*}\\.md#](${name#*:}.md#g"
    to_pages="$to_pages;s#](\\.\\./\\.\\./${name%%:*}\\.md#](../${name#*:}.md#g"
done
to_pages="$to_pages;s#](\\.\\./packaging/monitoring/)#](examples/)#g;s#](LICENSE)#](copyright)#g"
# What is left of links to the repository.
without='s#\[\([^]]*\)\](\(\.\./\)*\(tests\|crates\|packaging\|scripts\|xtask\|CODE_OF_CONDUCT\.md\)[^)]*)#\1#g'

mkdir -p "$out"
(cd "$root/docs" && find . -type f \( -name '*.md' -o -name '*.svg' -o -name '*.json' \) ! -name SUMMARY.md) | sort |
    while read -r page; do
        mkdir -p "$out/$(dirname "$page")"
        source="$root/docs/$page"
        included=$(sed -n '1s#^{{\#include \.\./\(.*\)}}$#\1#p' "$source")
        if [ -n "$included" ]; then
            sed -e "s#](docs/#](#g$to_pages;$without" "$root/$included" > "$out/$page"
        else
            sed -e "${to_pages#;};$without" "$source" > "$out/$page"
        fi
        chmod 644 "$out/$page"
    done
