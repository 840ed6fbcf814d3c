package WithoutNode;

# Stands in for what only a node of Proxmox VE has, so that PVE's own modules can be loaded elsewhere: modules in C and
# Rust, what is generated when its packages are built, and packages that storage does not need. They are empty: a
# function of them that is called is an error, which names it.

use strict;
use warnings;

# The numbers of pmxcfs' requests are only passed to it.
my @REQUESTS = qw(
    GET_CLUSTER_INFO GET_CLUSTER_LOG GET_CONFIG GET_FS_VERSION GET_GUEST_CONFIG_PROPERTIES
    GET_GUEST_CONFIG_PROPERTY GET_GUEST_LIST GET_RRD_DUMP GET_STATUS LOG_CLUSTER_MSG SET_STATUS VERIFY_TOKEN
);

# Its file exists, but needs a library in C.
unshift @INC, sub {
    my (undef, $file) = @_;

    return $file eq 'PVE/IPCC.pm' ? _source('PVE::IPCC', '') : ();
};

# Whatever is not found elsewhere.
push @INC, sub {
    my (undef, $file) = @_;

    return if $file !~ m!\A(?:PVE|Proxmox)/.*\.pm\z! || $file =~ m!\APVE/Storage/Custom/!;
    my $package = $file =~ s!/!::!gr =~ s/\.pm\z//r;
    my $code = '';
    if ($package eq 'PVE::Cluster::IPCConst') {
        $code = join('', map { "sub PVE::Cluster::CFS_IPC_$_ () { 0 }\n" } @REQUESTS);
    }
    return _source($package, $code);
};

sub _source {
    my ($package, $code) = @_;

    my $text = "package $package;\nsub import { }\n${code}1;\n";
    open(my $source, '<', \$text) or die "open: $!\n";
    return $source;
}

1;
