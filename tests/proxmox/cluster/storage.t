#!/usr/bin/perl
# The plug-in on a cluster, for a client test that starts the nodes. FOREBAY_NODES has the directories of two nodes on
# "hosts" of Proxmox VE, separated by a colon; FOREBAY_CLUSTER is the address of the cluster.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";
use Fixture qw(plugin refused mib);
use Test::More;

my $plugin = plugin();
my @hosts = split(/:/, $ENV{FOREBAY_NODES});
my $cluster = $ENV{FOREBAY_CLUSTER};

# The same entry of storage.cfg at each host means the node of this host.
sub at {
    my ($host) = @_;

    return {
        type => 'forebay', content => { images => 1, rootdir => 1 }, shared => 1, 'forebay-pool' => $cluster,
        'forebay-api' => "unix:$host/forebay.sock", 'forebay-nbd' => "unix:$host/nbd.sock",
    };
}

sub io {
    my ($scfg, $volname, @commands) = @_;

    my $uri = $plugin->path($scfg, $volname, 'fb');
    my $output = qx(qemu-io -f raw @{[map { "-c '$_'" } @commands]} '$uri' 2>&1);
    return $output =~ m/failed/ ? diag($output) && 0 : $? == 0;
}

my ($first, $second) = map { at($_) } @hosts;
for my $scfg ($first, $second) {
    ok($plugin->check_connection('fb', $scfg), 'the node has the cluster');
    my ($total, $free, $used, $active) = $plugin->status('fb', $scfg, {});
    ok($active && $total > 0 && $free > 0 && $free + $used == $total, '... and room');
    my $other = { %$scfg, 'forebay-pool' => 'rados:vms/other' };
    like(refused(sub { $plugin->check_connection('fb', $other) }), qr/\Qhas the pool '$cluster' instead/, 'another cluster');
}

# One namespace: what one host makes, the other one uses.
is($plugin->alloc_image('fb', $first, 100, 'raw', undef, 65536), 'vm-100-disk-0', 'a volume at the first host');
is($plugin->alloc_image('fb', $second, 100, 'raw', undef, 65536), 'vm-100-disk-1', 'the next name at the second one');
ok(io($first, 'vm-100-disk-1', 'write -P 7 0 1M'), 'its guest runs at the first host');
ok($plugin->activate_volume('fb', $second, 'vm-100-disk-1'), 'the guest is migrated');
ok(io($second, 'vm-100-disk-1', 'read -P 7 0 1M', 'write -P 8 0 1M'), '... and finds its data');
$plugin->volume_snapshot($first, 'fb', 'vm-100-disk-1', 'daily');
ok(io($second, 'vm-100-disk-1', 'write -P 9 0 1M'), 'it continues');
$plugin->volume_snapshot_rollback($second, 'fb', 'vm-100-disk-1', 'daily');
ok(io($first, 'vm-100-disk-1', 'read -P 8 0 1M'), 'a rollback at the other host');
$plugin->volume_snapshot_delete($first, 'fb', 'vm-100-disk-1', 'daily', 0);
is($plugin->create_base('fb', $second, 'vm-100-disk-1'), 'base-100-disk-1', 'a template');
my @clones = map { $plugin->clone_image($_, 'fb', 'base-100-disk-1', 200) } $first, $second;
is_deeply(\@clones, ['base-100-disk-1/vm-200-disk-0', 'base-100-disk-1/vm-200-disk-1'], 'linked clones of it');
ok(io($second, $clones[0], 'read -P 8 0 1M'), 'have its contents');
is($plugin->rename_volume($second, 'fb', $clones[0], 300), 'fb:base-100-disk-1/vm-300-disk-0', 'a disk moves to another guest');
$plugin->volume_resize($first, 'fb', 'vm-300-disk-0', mib(128), 0);
is(scalar($plugin->volume_size_info($second, 'fb', 'vm-300-disk-0')), mib(128), 'a larger one');
my $listed = sub { [map { $_->{volid} } @{ $plugin->list_images('fb', $_[0]) }] };
is_deeply($listed->($first), $listed->($second), 'both hosts list the same');
is(scalar(@{ $listed->($first) }), 4, '... everything');
like(refused(sub { $plugin->free_image('fb', $first, 'base-100-disk-1', 1) }), qr/clones/, 'a template with clones');
$plugin->free_image('fb', $second, $_, 0) for 'vm-300-disk-0', $clones[1], 'vm-100-disk-0';
$plugin->free_image('fb', $first, 'base-100-disk-1', 1);
is_deeply($listed->($second), [], 'all is removed');

# A host without a node, and a node that does not run.
my $both = { %$first, 'forebay-api' => "unix:/nonexistent/forebay.sock,unix:$hosts[1]/forebay.sock" };
ok($plugin->check_connection('fb', $both), 'the next node is used');

done_testing();
