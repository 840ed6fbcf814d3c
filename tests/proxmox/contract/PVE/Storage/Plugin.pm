package PVE::Storage::Plugin;

# What the plug-in may expect of its base class, as the documentation of PVE's storage API describes it.
# t/contract.t checks that the real class has these functions, with the same results.

use strict;
use warnings;

# The first free name of a disk of a guest. Templates use numbers as well.
sub get_next_vm_diskname {
    my ($names, $storeid, $vmid, $format, $scfg) = @_;

    my %used;
    for my $name (@$names) {
        $used{$1} = 1 if $name =~ m/\A(?:vm|base)-\Q$vmid\E-disk-(\d+)\z/;
    }
    my $number = 0;
    $number++ while $used{$number};
    return "vm-$vmid-disk-$number";
}

# A stream of a volume begins with its size.
sub write_common_header {
    my ($stream, $size_bytes) = @_;

    syswrite($stream, pack('Q<', $size_bytes)) == 8 or die "cannot write the size: $!\n";
    return;
}

sub read_common_header {
    my ($stream) = @_;

    my $read = sysread($stream, my $bytes, 8);
    die "the stream has no size\n" if ($read // 0) != 8;
    return unpack('Q<', $bytes);
}

1;
