#!/usr/bin/perl
# The plug-in below PVE::Storage and qemu-server, as the daemons and command lines of Proxmox VE use it. Needs PVE_SOURCES.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";
use Fixture qw(mib plugin refused scratch spawn start_server storage);
use Node qw(configure);
use PVE::QemuServer::QemuImage;
use Test::More;

my $plugin = plugin();
my $server = start_server();
my $cfg = configure(<<"END");
forebay: fb
        forebay-api unix:$server->{control}
        forebay-nbd unix:$server->{nbd}
        forebay-reconnect-delay 60
        content images,rootdir

forebay: shared
        forebay-api http://127.0.0.1:$server->{http}
        forebay-nbd 127.0.0.1:$server->{tcp}
        forebay-namespace acme
        forebay-desktops 1
        shared 1

forebay: down
        forebay-api unix:$server->{dir}/none
        content images
END

# storage.cfg

is_deeply($cfg->{ids}->{fb}->{content}, { images => 1, rootdir => 1 }, 'content');
is_deeply($cfg->{ids}->{shared}->{content}, { images => 1 }, 'is images by default');
is($cfg->{ids}->{shared}->{'forebay-desktops'}, 1, 'a property');
ok(!$cfg->{ids}->{fb}->{shared} && $cfg->{ids}->{shared}->{shared}, 'shared only if configured');
my $written = PVE::Storage::Plugin->write_config('storage.cfg', $cfg);
is_deeply(PVE::Storage::Plugin->parse_config('storage.cfg', $written)->{ids}->{fb}, $cfg->{ids}->{fb}, 'survives writing');

# As `pvesm add` does
sub add {
    my (%properties) = @_;
    my $checked = $plugin->check_config('new', { content => 'images', %properties }, 1, 0);
    $plugin->on_add_hook('new', $checked);
    return $checked;
}
ok(add('forebay-nbd' => '10.0.0.5:10809'), 'a storage is added');
like(refused(sub { add('forebay-reconnect-delay' => 100000) }), qr/maximum value/, 'by the schema: too long a delay');
like(refused(sub { add('forebay-sync' => 'maybe') }), qr/enumeration 'flush, always, never'/, 'an unknown value');
like(refused(sub { add('forebay-nbd' => 'x') }), qr/use unix:PATH or HOST:PORT/, 'by the plug-in: an address');
like(refused(sub { add('forebay-nbt' => 'x') }), qr/unexpected property/, 'an unknown property');
like(refused(sub { add(shared => 1) }), qr/all nodes can reach/, 'a shared storage on a socket');
like(refused(sub { local $SIG{__WARN__} = sub { }; add(content => 'iso') }), qr/content type/, 'content that it does not have');

# Volumes

is(PVE::Storage::vdisk_alloc($cfg, 'fb', 100, undef, undef, 64 << 10), 'fb:vm-100-disk-0', 'vdisk_alloc');
is((PVE::Storage::parse_volname($cfg, 'fb:vm-100-disk-0'))[0], 'images', 'parse_volname');
is(scalar(PVE::Storage::volume_size_info($cfg, 'fb:vm-100-disk-0', 5)), mib(64), 'volume_size_info');
PVE::Storage::activate_volumes($cfg, ['fb:vm-100-disk-0']);
PVE::Storage::volume_snapshot($cfg, 'fb:vm-100-disk-0', 'daily');
PVE::Storage::volume_snapshot_rollback($cfg, 'fb:vm-100-disk-0', 'daily');
is_deeply([keys %{ PVE::Storage::volume_snapshot_info($cfg, 'fb:vm-100-disk-0') }], ['daily'], 'snapshots');
PVE::Storage::volume_resize($cfg, 'fb:vm-100-disk-0', mib(96), 0);
PVE::Storage::volume_snapshot_delete($cfg, 'fb:vm-100-disk-0', 'daily');
is(PVE::Storage::volume_has_feature($cfg, 'snapshot', 'fb:vm-100-disk-0'), 1, 'features');
is(PVE::Storage::volume_qemu_snapshot_method($cfg, 'fb:vm-100-disk-0'), 'storage', 'the storage makes snapshots');
is(PVE::Storage::rename_volume($cfg, 'fb:vm-100-disk-0', 101), 'fb:vm-101-disk-0', 'rename_volume');
my $base = PVE::Storage::vdisk_create_base($cfg, 'fb:vm-101-disk-0');
is($base, 'fb:base-101-disk-0', 'vdisk_create_base');
my $clone = PVE::Storage::vdisk_clone($cfg, $base, 102);
is($clone, 'fb:base-101-disk-0/vm-102-disk-0', 'vdisk_clone');
like(refused(sub { PVE::Storage::vdisk_free($cfg, $base) }), qr/still in use by linked clones/, 'PVE sees that a template is used');
is_deeply([map { $_->{volid} } @{ PVE::Storage::vdisk_list($cfg, 'fb')->{fb} }], [$base, $clone], 'vdisk_list');
is_deeply([map { $_->{volid} } @{ PVE::Storage::volume_list($cfg, 'fb', 102, 'images') }], [$clone], 'volume_list');
like(refused(sub { PVE::Storage::vdisk_alloc($cfg, 'fb', 100, 'qcow2', undef, 1024) }), qr/raw/, 'other formats');

# Options of QEMU, after PVE has dropped what it does not allow

{
    my @warnings;
    no warnings 'redefine';
    local *PVE::Storage::log_warn = sub { push @warnings, @_ };
    my $blockdev = PVE::Storage::qemu_blockdev_options($cfg, $clone, 'pc-i440fx-10.0+pve0', {});
    is($blockdev->{'reconnect-delay'}, 60, 'the delay is allowed');
    is_deeply(\@warnings, [], 'nothing is dropped');
    # The base class derives the same from the path, without the delay.
    my $derived = PVE::Storage::Plugin::qemu_blockdev_options($plugin, $cfg->{ids}->{fb}, 'fb', 'vm-102-disk-0', '', {});
    is_deeply({ %$derived, 'reconnect-delay' => 60 }, $blockdev, 'PVE parses the URI to the same options');
    $derived = PVE::Storage::Plugin::qemu_blockdev_options($plugin, $cfg->{ids}->{shared}, 'shared', 'vm-1-a', '', {});
    is_deeply({ %$derived, 'reconnect-delay' => 300 },
        PVE::Storage::qemu_blockdev_options($cfg, 'shared:vm-1-a', '', {}), 'also over TCP');
}

# Full clones

my $copy = PVE::Storage::vdisk_alloc($cfg, 'fb', 103, 'raw', undef, 96 << 10);
my $dir = scratch();
my $uri = PVE::Storage::path($cfg, $clone);
waitpid(spawn("$dir/log", qw(qemu-io -f raw -c), 'write -P 5 1M 1M', $uri), 0);
{
    no warnings qw(once redefine);
    local *PVE::QemuServer::QemuImage::print = sub { };
    open(my $stdout, '>&', \*STDOUT);
    open(STDOUT, '>', "$dir/convert.log");
    PVE::QemuServer::QemuImage::convert($clone, $copy, mib(96), {});
    open(STDOUT, '>&', $stdout);
}
waitpid(spawn("$dir/io.log", qw(qemu-io -f raw -c), 'read -P 5 1M 1M', scalar PVE::Storage::path($cfg, $copy)), 0);
open(my $log, '<', "$dir/io.log") or die "io.log: $!\n";
unlike(join('', <$log>), qr/fail/i, 'a full clone has the data');

# Export and import

open(my $out, '>', "$dir/stream") or die "stream: $!\n";
PVE::Storage::volume_export($cfg, $out, $copy, 'raw+size', undef, undef, 0);
close($out) or die "stream: $!\n";
is(-s "$dir/stream", mib(96) + 8, 'volume_export');
open(my $in, '<', "$dir/stream") or die "stream: $!\n";
is(PVE::Storage::volume_import($cfg, $in, 'shared:vm-104-disk-0', 'raw+size', undef, undef, 0, 0),
    'shared:vm-104-disk-0', 'volume_import to another storage');
is_deeply([PVE::Storage::volume_transfer_formats($cfg, $copy, 'shared:vm-104-disk-0')], ['raw+size'], 'formats to migrate');
is_deeply([PVE::Storage::volume_transfer_formats($cfg, $copy, 'local:103/vm-103-disk-0.raw')], ['raw+size'], 'also to a directory');

# Desktops

$base = PVE::Storage::vdisk_create_base($cfg, 'shared:vm-104-disk-0');
my $desktop = PVE::Storage::vdisk_clone($cfg, $base, 105);
ok(!PVE::Storage::volume_has_feature($cfg, 'snapshot', $desktop), 'linked clones on the other storage are desktops');

# Status of all storages, of which one is down

{
    local $SIG{__WARN__} = sub { };
    my $info = PVE::Storage::storage_info($cfg, 'images');
    ok($info->{fb}->{active} && $info->{fb}->{total} > 0, 'storage_info');
    ok(!$info->{down}->{active}, 'a server that is down is not active');
    like(refused(sub { PVE::Storage::vdisk_alloc($cfg, 'down', 100, 'raw', undef, 1024) }),
        qr/connection check for storage 'down' failed - cannot reach Forebay/, 'and PVE reports why');
}

# Allocations for one guest at once, under PVE's locks

for my $storeid (qw(fb shared)) {
    my @workers = map {
        my $pid = open(my $names, '-|') // die "fork: $!\n";
        if ($pid == 0) {
            print map { eval { PVE::Storage::vdisk_alloc($cfg, $storeid, 500, 'raw', undef, 1024) } // $@, "\n" } 1 .. 10;
            close(STDOUT);
            POSIX::_exit(0);
        }
        $names
    } 1 .. 4;
    my %names = map { chomp; $_ => 1 } map { my $names = $_; <$names> } @workers;
    is(scalar(grep { m/\A$storeid:vm-500-disk-\d+\z/ } keys %names), 40, "forty volumes on $storeid");
}

PVE::Storage::vdisk_free($cfg, $_) for $clone, 'fb:base-101-disk-0', $copy;
is_deeply(PVE::Storage::vdisk_list($cfg, 'fb', 102)->{fb}, [], 'vdisk_free');

done_testing();
