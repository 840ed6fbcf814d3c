# Makes template units, for a server for each pool, of the units of one server:
#
#   for unit in forebay.service forebay.socket forebay-control.socket; do
#       sed -f instance.sed $unit > /etc/systemd/system/${unit%.*}@.${unit##*.}
#   done

s|Forebay storage server|& for the pool %i|
s|forebay\.service|forebay@%i.service|g
s|forebay\.socket|forebay@%i.socket|g
s|forebay-control\.socket|forebay-control@%i.socket|g
s|/etc/forebay/forebay\.toml|/etc/forebay/%i.toml|g
s|/run/forebay/|/run/forebay-%i/|g
s,^\(State\|Runtime\)Directory=forebay$,&-%i,
# A standby may wait for days, and guests that do not need it must not wait with it.
/^# The guests of Proxmox VE and of libvirt /d
/^Before=pve-guests\.service libvirt-guests\.service$/d
