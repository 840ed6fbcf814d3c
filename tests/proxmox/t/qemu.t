#!/usr/bin/perl
# Real QEMU with the command lines of Proxmox VE: I/O, snapshots, rollbacks and a new size, and a server that is killed
# under a running guest. With PVE_SOURCES, qemu-server itself makes the command line.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";
use Fixture qw(mib plugin real refused scratch start_server stop_server storage);
use Guest;
use JSON;
use Test::More;

my $plugin = plugin();
# Before version 9 there is no such module.
my $qemu_server = real() && eval { require PVE::QemuServer::Blockdev; PVE::QemuServer::Blockdev->can('generate_drive_blockdev') };
my $server = start_server();
my $dir = scratch();
my %storages = (
    'a UNIX socket' => storage($server),
    'TCP' => storage($server, 'forebay-nbd' => "127.0.0.1:$server->{tcp}", 'forebay-reconnect-delay' => 120),
);

# The monitor writes next to the device: so share-rw.
#
# As in version 9: -blockdev, from qemu_blockdev_options().
sub with_blockdev {
    my ($scfg, $volname, $snapname) = @_;

    my ($node, $throttle, $blockdev);
    if ($qemu_server) {
        my $cfg = { ids => { fb => $scfg } };
        my $drive = { interface => 'scsi', index => 0, file => "fb:$volname", discard => 'on' };
        my $options = defined($snapname) ? { 'snapshot-name' => $snapname, 'read-only' => 1 } : {};
        $blockdev = PVE::QemuServer::Blockdev::generate_drive_blockdev($cfg, $drive, 'pc-i440fx-10.0+pve0', $options);
        $throttle = PVE::QemuServer::Blockdev::generate_throttle_group($drive);
        $node = 'drive-scsi0';
        is($blockdev->{'node-name'}, $node, 'the name of the top node');
    } else {
        my $file = $plugin->qemu_blockdev_options($scfg, 'fb', $volname, '10.0+pve0', { 'snapshot-name' => $snapname });
        my $cache = { direct => JSON::true, 'no-flush' => JSON::false };
        my %common = (cache => $cache, discard => 'unmap', 'read-only' => $snapname ? JSON::true : JSON::false);
        $node = 'drive-scsi0';
        $throttle = { 'qom-type' => 'throttle-group', id => 'throttle-drive-scsi0', limits => {} };
        $blockdev = {
            %common, driver => 'throttle', 'node-name' => $node, 'throttle-group' => 'throttle-drive-scsi0',
            file => { %common, driver => 'raw', 'node-name' => 'f1', 'detect-zeroes' => 'unmap', file => { %common, %$file, 'node-name' => 'e1' } },
        };
        delete $blockdev->{cache};
    }
    return ($node, '-object', encode_json($throttle), '-blockdev', encode_json($blockdev),
        '-device', "virtio-blk-pci,share-rw=on,drive=$node");
}

# As in version 8 and before: -drive, from path(). There is no option for the delay.
sub with_drive {
    my ($scfg, $volname) = @_;

    my $path = $plugin->path($scfg, $volname, 'fb');
    return ('drive-scsi0', '-drive', "file=$path,if=none,id=drive-scsi0,discard=on,format=raw,cache=none,aio=native,detect-zeroes=unmap",
        '-device', 'virtio-blk-pci,share-rw=on,drive=drive-scsi0');
}

for my $transport (sort keys %storages) {
    my $scfg = $storages{$transport};
    for my $case (['-blockdev', \&with_blockdev], ['-drive', \&with_drive]) {
        my ($option, $command) = @$case;
        note("$option over $transport");
        my $volname = $plugin->alloc_image('fb', $scfg, 100, 'raw', undef, 64 << 10);
        $plugin->activate_volume('fb', $scfg, $volname);
        my $guest = Guest->start($dir, $command->($scfg, $volname));
        is($guest->size(), mib(64), "$option over $transport: the size");
        ok($guest->io('write -P 1 0 1M') && $guest->io('flush') && $guest->io('read -P 1 0 1M'), 'written and read');
        $plugin->volume_snapshot($scfg, 'fb', $volname, 'running');
        ok($guest->io('write -P 2 0 1M'), 'overwritten after a snapshot');
        ok($guest->io('discard 2M 1M'), 'discarded');
        like(refused(sub { $plugin->volume_resize($scfg, 'fb', $volname, mib(128), 1) }), qr/stopped/, 'not resized while it runs');
        like(refused(sub { $plugin->volume_snapshot_rollback($scfg, 'fb', $volname, 'running') }), qr/in use|client/, 'nor rolled back');
        $guest->stop();

        $plugin->volume_snapshot_rollback($scfg, 'fb', $volname, 'running');
        $plugin->volume_resize($scfg, 'fb', $volname, mib(128), 0);
        $guest = Guest->start($dir, $command->($scfg, $volname));
        ok($guest->io('read -P 1 0 1M'), 'rolled back');
        is($guest->size(), mib(128), 'and larger');
        ok($guest->io('write -P 3 127M 1M'), 'at the end');
        $guest->stop();
    }
}

# Backups and clones read snapshots

my $scfg = $storages{'a UNIX socket'};
my $guest = Guest->start($dir, with_blockdev($scfg, 'vm-100-disk-0', 'running'));
ok($guest->io('read -P 1 0 1M'), 'a snapshot');
like(refused(sub { $guest->io('write -P 9 0 1M') }), qr/./, 'is read-only');
$guest->stop();

# A template and its linked clones, at once

$plugin->volume_snapshot_delete($scfg, 'fb', 'vm-100-disk-0', 'running');
my $base = $plugin->create_base('fb', $scfg, 'vm-100-disk-0');
mkdir("$dir/$_") or die "mkdir: $!\n" for 1 .. 3;
my @guests = map { Guest->start("$dir/$_", with_blockdev($scfg, $plugin->clone_image($scfg, 'fb', $base, 200 + $_))) } 1 .. 3;
for my $number (1 .. 3) {
    my $clone = $guests[$number - 1];
    ok($clone->io('read -P 1 0 1M') && $clone->io("write -P 1$number 0 1M"), "linked clone $number");
}
ok($guests[$_ - 1]->io("read -P 1$_ 0 1M"), "has what its guest wrote") for 1 .. 3;
$_->stop() for @guests;

# The server is killed, and started again

for my $transport (sort keys %storages) {
    my $storage = $storages{$transport};
    my $volname = $plugin->alloc_image('fb', $storage, 300, 'raw', undef, 64 << 10);
    $guest = Guest->start($dir, with_blockdev($storage, $volname));
    ok($guest->io('write -P 7 0 1M'), "over $transport: written before");
    stop_server($server, 'KILL');
    $server = start_server(map { $_ => $server->{$_} } qw(dir tcp http memory));
    ok($guest->io('read -P 7 0 1M'), 'a guest finds what it wrote');
    ok($guest->io('write -P 8 0 1M') && $guest->io('flush'), 'and continues');
    $guest->stop();
}

done_testing();
