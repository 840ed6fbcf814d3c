# Selects the Debian package mirror; sourced by build-image.sh, and by the tests of
# tests/clients/clients_demo.py. shellcheck shell=bash

# debian_mirror SUITE [DIR]: prints the URI of a mirror of the Debian archive. DEBIAN_MIRROR, if set,
# otherwise the mirror that apt uses on this machine, from the source files in DIR (/etc/apt). Fails without a
# mirror.
#
# A mirror has the component main, for another suite than the security updates, and a path that ends in
# /debian; if no source has such a path, the first source of SUITE is used.
debian_mirror() {
  local suite=$1 apt=${2:-/etc/apt} mirror=${DEBIAN_MIRROR:-}
  if [[ -z $mirror ]]; then
    mirror=$(apt_sources "$apt" | awk -v suite="$suite" '
      $1 !~ /^(https?|file):/ || $2 ~ /(-security|\/updates)$/ || $3 != "main" { next }
      archive == "" && $1 ~ /\/debian\/?$/ { archive = $1 }
      other == "" && $2 == suite { other = $1 }
      END { print archive != "" ? archive : other }')
  fi
  if [[ -z $mirror ]]; then
    printf 'image: no Debian mirror in %s/sources.list and %s/sources.list.d: set DEBIAN_MIRROR to the URI of one\n' \
      "$apt" "$apt" >&2
    return 1
  fi
  printf '%s\n' "$mirror"
}

# apt_sources DIR: prints a line "URI SUITE COMPONENT" for each enabled repository of binary packages in the
# source files of DIR, in both formats of sources.list(5).
apt_sources() {
  local file
  for file in "$1/sources.list" "$1"/sources.list.d/*.list; do
    [[ -f $file ]] || continue
    sed -e 's/#.*//' -e 's/\[[^]]*\]//' "$file" |
      awk '$1 == "deb" { for (i = 4; i <= NF; i++) print $2, $3, $i }'
  done
  for file in "$1"/sources.list.d/*.sources; do
    [[ -f $file ]] || continue
    awk '
      function stanza(  i, j, k, us, ss, cs, u, s, c) {
        us = split(field["uris"], u); ss = split(field["suites"], s); cs = split(field["components"], c)
        if (" " field["types"] " " ~ /[ \t]deb[ \t]/ && tolower(field["enabled"]) !~ /^[ \t]*(no|false|off|0)[ \t]*$/)
          for (i = 1; i <= us; i++) for (j = 1; j <= ss; j++) for (k = 1; k <= cs; k++) print u[i], s[j], c[k]
        split("", field)
      }
      /^#/ { next }
      /^[ \t]*$/ { stanza(); next }
      /^[ \t]/ { field[name] = field[name] " " $0; next }
      { colon = index($0, ":"); name = tolower(substr($0, 1, colon - 1)); field[name] = substr($0, colon + 1) }
      END { stanza() }' "$file"
  done
}
