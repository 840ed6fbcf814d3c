#!/usr/bin/perl
# Every method that changes or shows volumes, on a real server.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";
use Fixture qw(binary mib plugin refused spawn start_server storage);
use Test::More;

my $plugin = plugin();
my $server = start_server();
my $scfg = storage($server);

# qemu-io as the guest: writes a pattern, or checks it.
sub io {
    my ($volname, @commands) = @_;

    my $uri = $plugin->path($scfg, $volname, 'fb');
    unlink "$server->{dir}/io.log";
    waitpid(spawn("$server->{dir}/io.log", 'qemu-io', '-f', 'raw', (map { ('-c', $_) } @commands), $uri), 0);
    my $status = $?;
    open(my $log, '<', "$server->{dir}/io.log") or die "io.log: $!\n";
    my $output = join('', <$log>);
    # qemu-io reports a wrong pattern, and succeeds.
    return $status == 0 && $output !~ m/fail|error/i;
}

sub volids {
    my (%wanted) = @_;

    return [map { $_->{volid} } @{ $plugin->list_images('fb', $scfg, $wanted{vmid}, $wanted{list}, {}) }];
}

sub feature {
    my ($feature, $volname, $snapname) = @_;

    return $plugin->volume_has_feature($scfg, $feature, 'fb', $volname, $snapname) ? 1 : 0;
}

# Allocation

is($plugin->alloc_image('fb', $scfg, 100, 'raw', undef, 64 << 10), 'vm-100-disk-0', 'the first disk');
is($plugin->alloc_image('fb', $scfg, 100, undef, undef, 528), 'vm-100-disk-1', 'the second one, of an EFI');
is($plugin->alloc_image('fb', $scfg, 100, 'raw', 'vm-100-cloudinit', 4096), 'vm-100-cloudinit', 'with a name');
is($plugin->volume_size_info($scfg, 'fb', 'vm-100-disk-1', 5), 528 << 10, 'has its size');
is_deeply([($plugin->volume_size_info($scfg, 'fb', 'vm-100-disk-0', 5))[0 .. 3]], [mib(64), 'raw', 0, undef], 'in detail');
is_deeply(volids(), ['fb:vm-100-cloudinit', 'fb:vm-100-disk-0', 'fb:vm-100-disk-1'], 'all are listed');
like(refused(sub { $plugin->alloc_image('fb', $scfg, 100, 'raw', 'vm-100-disk-0', 4096) }), qr/exists already/, 'a taken name');
like(refused(sub { $plugin->alloc_image('fb', $scfg, 100, 'qcow2', undef, 4096) }), qr/raw/, 'another format');
like(refused(sub { $plugin->alloc_image('fb', $scfg, 100, 'raw', $_, 4096) }), qr/begin with vm-100-|not the name/, "name $_")
    for qw(vm-101-disk-0 base-100-disk-3 base-100-a/vm-100-b golden);
like(refused(sub { $plugin->alloc_image('fb', $scfg, 100, 'raw', undef, $_) }), qr/size/, "size $_") for qw(0 -1 1.5 1e99);
like(refused(sub { $plugin->alloc_image('fb', $scfg, 100, 'raw', undef, 1 << 40) }), qr/64 TiB/, 'a size that the server refuses');
is_deeply(volids(vmid => 100, list => ['fb:vm-100-disk-1']), ['fb:vm-100-disk-1'], 'some are listed');
is_deeply(volids(vmid => 10), [], 'another guest has none');

# Snapshots

ok(io('vm-100-disk-0', 'write -P 1 0 1M'), 'the guest writes');
$plugin->volume_snapshot($scfg, 'fb', 'vm-100-disk-0', 'first');
ok(io('vm-100-disk-0', 'write -P 2 0 1M'), 'and overwrites it');
$plugin->volume_snapshot($scfg, 'fb', 'vm-100-disk-0', 'second');
like(refused(sub { $plugin->volume_snapshot($scfg, 'fb', 'vm-100-disk-0', 'first') }), qr/exists already/, 'a taken name');
like(refused(sub { $plugin->volume_snapshot($scfg, 'fb', 'vm-100-disk-0', 'a/b') }), qr/not a valid name/, 'a bad name');
my $info = $plugin->volume_snapshot_info($scfg, 'fb', 'vm-100-disk-0');
is_deeply([sort keys %$info], ['first', 'second'], 'both are reported');
ok($info->{first}->{timestamp} > 1.7e9 && $info->{first}->{'virtual-size'} == mib(64), 'with time and size');
is_deeply($plugin->volume_snapshot_list($scfg, 'fb', 'vm-100-disk-0'), ['first', 'second'], 'in the order of their times');
ok($plugin->volume_rollback_is_possible($scfg, 'fb', 'vm-100-disk-0', 'first', []), 'also to the first of them');
$plugin->volume_snapshot_rollback($scfg, 'fb', 'vm-100-disk-0', 'first');
ok(io('vm-100-disk-0', 'read -P 1 0 1M'), 'rolled back');
$plugin->volume_snapshot_rollback($scfg, 'fb', 'vm-100-disk-0', 'second');
ok(io('vm-100-disk-0', 'read -P 2 0 1M'), 'and forward to a later one');
like(refused(sub { $plugin->volume_snapshot_rollback($scfg, 'fb', 'vm-100-disk-0', 'third') }), qr/third/, 'a missing snapshot');
is($plugin->volume_qemu_snapshot_method('fb', $scfg, 'vm-100-disk-0'), 'storage', 'QEMU is not asked for snapshots');
like(refused(sub { $plugin->rename_snapshot($scfg, 'fb', 'vm-100-disk-0', 'first', 'x') }), qr/cannot be renamed/, 'no renaming');

# Linked clones of a snapshot

my $of_snapshot = $plugin->clone_image($scfg, 'fb', 'vm-100-disk-0', 200, 'first');
is($of_snapshot, 'vm-200-disk-0', 'a clone of a snapshot');
ok(io('vm-200-disk-0', 'read -P 1 0 1M'), 'has its content');
like(refused(sub { $plugin->volume_snapshot_delete($scfg, 'fb', 'vm-100-disk-0', 'first') }), qr/vm-200-disk-0/, 'it needs the snapshot');
like(refused(sub { $plugin->free_image('fb', $scfg, 'vm-100-disk-0') }), qr/linked clones/, 'and the volume');
is(scalar(keys %{ $plugin->volume_snapshot_info($scfg, 'fb', 'vm-100-disk-0') }), 2, 'no snapshot was removed');
like(refused(sub { $plugin->clone_image($scfg, 'fb', 'vm-100-disk-0', 200) }), qr/neither a template nor a snapshot/, 'of a volume');
$plugin->free_image('fb', $scfg, 'vm-200-disk-0');
$plugin->volume_snapshot_delete($scfg, 'fb', 'vm-100-disk-0', 'first');
is_deeply([keys %{ $plugin->volume_snapshot_info($scfg, 'fb', 'vm-100-disk-0') }], ['second'], 'removed');

# Templates

like(refused(sub { $plugin->create_base('fb', $scfg, 'vm-100-disk-0') }), qr/snapshot/, 'a volume with snapshots');
is_deeply(volids(), ['fb:vm-100-cloudinit', 'fb:vm-100-disk-0', 'fb:vm-100-disk-1'], 'stays as it was');
$plugin->volume_snapshot_delete($scfg, 'fb', 'vm-100-disk-0', 'second');
is($plugin->create_base('fb', $scfg, 'vm-100-disk-0'), 'base-100-disk-0', 'a template');
like(refused(sub { $plugin->create_base('fb', $scfg, 'base-100-disk-0') }), qr/already/, 'twice');
is_deeply(volids(), ['fb:base-100-disk-0', 'fb:vm-100-cloudinit', 'fb:vm-100-disk-1'], 'replaces the volume');
is($plugin->alloc_image('fb', $scfg, 100, 'raw', undef, 1024), 'vm-100-disk-2', 'templates use numbers, too');
my @clones = map { $plugin->clone_image($scfg, 'fb', 'base-100-disk-0', 101) } 1 .. 2;
is_deeply(\@clones, ['base-100-disk-0/vm-101-disk-0', 'base-100-disk-0/vm-101-disk-1'], 'linked clones');
ok(io($clones[0], 'read -P 2 0 1M', 'write -P 3 0 1M', 'read -P 3 0 1M'), 'can be written');
ok(io($clones[1], 'read -P 2 0 1M'), 'on their own');
ok(!io('base-100-disk-0', 'write 0 4k'), 'a template cannot');
is_deeply(volids(vmid => 101), [map { "fb:$_" } @clones], 'they are listed with their template');
is(($plugin->volume_size_info($scfg, 'fb', $clones[0]))[3], 'base-100-disk-0', 'which is their parent');
like(refused(sub { $plugin->free_image('fb', $scfg, 'base-100-disk-0', 1) }), qr/has 2 clone/, 'a template with clones');
is($plugin->create_base('fb', $scfg, $clones[1]), 'base-101-disk-1', 'a template of a linked clone stands alone');
is_deeply(volids(vmid => 101), ['fb:base-101-disk-1', "fb:$clones[0]"], 'as the list says');

# Resize

like(refused(sub { $plugin->volume_resize($scfg, 'fb', $clones[0], mib(128), 1) }), qr/stopped/, 'of a running guest');
like(refused(sub { $plugin->volume_resize($scfg, 'fb', $clones[0], mib(1), 0) }), qr/cannot shrink/, 'to less');
like(refused(sub { $plugin->volume_resize($scfg, 'fb', $clones[0], mib(128), 0, 'snap') }), qr/snapshots/, 'of a snapshot');
like(refused(sub { $plugin->volume_resize($scfg, 'fb', 'base-101-disk-1', mib(128), 0) }), qr/template/, 'of a template');
$plugin->volume_resize($scfg, 'fb', $clones[0], mib(128), 0);
is($plugin->volume_size_info($scfg, 'fb', $clones[0]), mib(128), 'larger');
ok(io($clones[0], 'read -P 3 0 1M', 'read -P 0 127M 1M'), 'with zeroes at the end');

# Rename: moving a disk to another guest

is($plugin->rename_volume($scfg, 'fb', 'vm-100-disk-1', 102), 'fb:vm-102-disk-0', 'a free name');
is($plugin->rename_volume($scfg, 'fb', 'vm-102-disk-0', 102, 'vm-102-efi'), 'fb:vm-102-efi', 'a certain name');
is($plugin->rename_volume($scfg, 'fb', $clones[0], 103), 'fb:base-100-disk-0/vm-103-disk-0', 'a linked clone stays one');
ok(io('vm-103-disk-0', 'read -P 3 0 1M'), 'keeps its content');
is_deeply(volids(vmid => 101), ['fb:base-101-disk-1'], 'the old name is free');
like(refused(sub { $plugin->rename_volume($scfg, 'fb', 'base-101-disk-1', 102) }), qr/template/, 'a template');
like(refused(sub { $plugin->rename_volume($scfg, 'fb', 'vm-102-efi', 102, 'golden') }), qr/not the name/, 'to a bad name');
like(refused(sub { $plugin->rename_volume($scfg, 'fb', 'vm-102-efi', 103, 'vm-103-disk-0') }), qr/exists already/, 'to a taken one');
$plugin->volume_snapshot($scfg, 'fb', 'vm-103-disk-0', 'daily');
like(refused(sub { $plugin->rename_volume($scfg, 'fb', 'vm-103-disk-0', 104) }), qr/has snapshots/, 'with snapshots');
my $api = Forebay::Proxmox::Api->new({ path => $server->{control}, text => 'test' });
$api->call(PUT => '/volumes/vm-102-efi/limits', { limits => { iops => 500 } });
$plugin->rename_volume($scfg, 'fb', 'vm-102-efi', 105, 'vm-105-efi');
is($api->call(GET => '/volumes/vm-105-efi/limits')->{limits}->{iops}, 500, 'limits follow the volume');

# Features

is(feature('snapshot', 'vm-103-disk-0'), 1, 'volumes have snapshots');
is(feature('clone', 'vm-103-disk-0'), 0, 'only templates and snapshots have linked clones');
is(feature('clone', 'base-100-disk-0'), 1, 'templates');
is(feature('clone', 'vm-103-disk-0', 'daily'), 1, 'snapshots');
is(feature('copy', 'base-100-disk-0'), 1, 'all can be copied');
is(feature('sparseinit', 'vm-103-disk-0'), 1, 'new volumes are zero');
is(feature('template', 'base-100-disk-0'), 0, 'a template is one already');
is(feature('replicate', 'vm-103-disk-0'), 0, 'no replication');

# Desktops

$scfg = storage($server, 'forebay-desktops' => 1, 'forebay-write-cache' => '16M');
my $desktop = $plugin->clone_image($scfg, 'fb', 'base-100-disk-0', 300);
is($desktop, 'base-100-disk-0/vm-300-disk-0', 'a desktop');
ok(io($desktop, 'read -P 2 0 1M', 'write -P 9 0 1M', 'read -P 9 0 1M'), 'its guest writes');
ok(io($desktop, 'read -P 2 0 1M'), 'and finds the content of the template at its next start');
is(feature('snapshot', $desktop), 0, 'it has no snapshots');
is(feature('template', $desktop), 0, 'and makes no template');
is(feature('copy', $desktop), 1, 'but can be copied');
like(refused(sub { $plugin->volume_snapshot($scfg, 'fb', $desktop, 'x') }), qr/desktop/, 'a snapshot is refused');
is($plugin->rename_volume($scfg, 'fb', $desktop, 303), 'fb:base-100-disk-0/vm-303-disk-0', 'it can be renamed');
is($plugin->rename_volume($scfg, 'fb', 'base-100-disk-0/vm-303-disk-0', 300), "fb:$desktop", '... and back');
like(refused(sub { $plugin->create_base('fb', $scfg, $desktop) }), qr/desktop/, 'or made a template');
is($plugin->alloc_image('fb', $scfg, 300, 'raw', undef, 1024), 'vm-300-disk-1', 'other disks of its guest');
ok(io('vm-300-disk-1', 'write -P 9 0 1M') && io('vm-300-disk-1', 'read -P 9 0 1M'), 'are kept');
my $kept = storage($server, 'forebay-desktops' => 1, 'forebay-desktop-reset' => 'never');
my $manual = $plugin->clone_image($kept, 'fb', 'base-100-disk-0', 301);
ok(io($manual, 'write -P 9 0 1M') && io($manual, 'read -P 9 0 1M'), 'without automatic resets');

# Namespaces

my $acme = storage($server, 'forebay-namespace' => 'acme');
is($plugin->alloc_image('acme', $acme, 100, 'raw', undef, 1024), 'vm-100-disk-0', 'a namespace has its own names');
is_deeply([map { $_->{volid} } @{ $plugin->list_images('acme', $acme) }], ['acme:vm-100-disk-0'], 'and lists them only');
ok(!(grep { m/acme/ } @{ volids() }), 'nor do others list them');
$plugin->volume_snapshot($acme, 'acme', 'vm-100-disk-0', 'daily');
is($plugin->clone_image($acme, 'acme', 'vm-100-disk-0', 101, 'daily'), 'vm-101-disk-0', 'clones in a namespace');
is($plugin->list_images('acme', $acme, 101)->[0]->{parent}, 'vm-100-disk-0@daily', 'with their parent');

# Removal

$plugin->free_image('fb', $scfg, $_) for 'vm-103-disk-0', 'vm-105-efi', $desktop, $manual;
$plugin->free_image('fb', $scfg, 'base-100-disk-0', 1);
like(refused(sub { $plugin->free_image('fb', $scfg, 'vm-103-disk-0') }), qr/vm-103-disk-0/, 'twice');
is_deeply(volids(), [map { "fb:$_" } qw(base-101-disk-1 vm-100-cloudinit vm-100-disk-2 vm-300-disk-1)], 'others are left');

# Disks that PVE did not make

$api->call(POST => '/volumes', { name => $_, size_bytes => 4096 }) for qw(golden base-7-disk-0 vm-0-disk-0);
is(scalar(@{ volids() }), 4, 'are not listed');

done_testing();
