package Node;

# A node of Proxmox VE without its cluster file system: PVE's own modules with a storage.cfg from the test.

use strict;
use warnings;

use Exporter qw(import);
use Fixture qw(plugin scratch);

our @EXPORT_OK = qw(configure);

my ($config, $locks);

plugin();
{
    no warnings qw(once prototype redefine);
    *PVE::Storage::cfs_read_file = sub { return $_[0] eq 'storage.cfg' ? $config : die "no file $_[0]\n" };
    *PVE::Cluster::get_vmlist = sub { return { ids => {} } };
    # Without a cluster, the lock of a shared storage is one of this node.
    *PVE::Cluster::cfs_lock_storage = sub {
        my ($storeid, $timeout_s, $code, @arguments) = @_;
        my $result = PVE::Tools::lock_file("$locks/$storeid", $timeout_s, $code, @arguments);
        return $result;
    };
    *PVE::INotify::nodename = sub { return 'node' };
}

# Parses a storage.cfg, which PVE's functions use from then on. Returns the result.
sub configure {
    my ($text) = @_;

    $locks //= scratch();
    mkdir('/var/lock/pve-manager');
    $config = PVE::Storage::Plugin->parse_config('storage.cfg', $text);
    return $config;
}

1;
