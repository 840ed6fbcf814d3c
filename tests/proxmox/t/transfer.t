#!/usr/bin/perl
# Moving volumes to and from other storages, as `pvesm export` and `pvesm import` do.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";
use Fixture qw(mib plugin refused scratch spawn start_server storage);
use Test::More;

my $plugin = plugin();
my $server = start_server();
my $scfg = storage($server);
my $dir = scratch();

sub stream {
    my ($mode, $name) = @_;

    open(my $stream, $mode, "$dir/$name") or die "$name: $!\n";
    binmode($stream);
    return $stream;
}

sub export {
    my ($volname, $name, $snapshot) = @_;

    my $stream = stream('>', $name);
    $plugin->volume_export($scfg, 'fb', $stream, $volname, 'raw+size', $snapshot, undef, 0);
    close($stream) or die "$name: $!\n";
    return;
}

sub import_volume {
    my ($volname, $name, $rename) = @_;

    return $plugin->volume_import($scfg, 'fb', stream('<', $name), $volname, 'raw+size', undef, undef, 0, $rename);
}

sub content {
    my ($name) = @_;

    local $/ = undef;
    return readline(stream('<', $name));
}

sub write_stream {
    my ($name, $size_bytes, $data) = @_;

    my $stream = stream('>', $name);
    print $stream pack('Q<', $size_bytes), $data;
    close($stream) or die "$name: $!\n";
    return;
}

# Half of it is data, half are zeroes.
my $data = join('', map { pack('N', $_) x 1024 } 1 .. 1024) . "\0" x mib(4);
write_stream('in', length($data), $data);

is_deeply([$plugin->volume_export_formats($scfg, 'fb', 'vm-100-disk-0', undef, undef, 0)], ['raw+size'], 'format of exports');
is_deeply([$plugin->volume_import_formats($scfg, 'fb', 'vm-100-disk-0', undef, undef, 0)], ['raw+size'], 'and imports');
is_deeply([$plugin->volume_export_formats($scfg, 'fb', 'vm-100-disk-0', 'b', 'a', 0)], [], 'no differences');
is_deeply([$plugin->volume_import_formats($scfg, 'fb', 'vm-100-disk-0', undef, undef, 1)], [], 'no snapshots');

is(import_volume('vm-100-disk-0', 'in', 0), 'fb:vm-100-disk-0', 'import');
export('vm-100-disk-0', 'out');
ok(content('out') eq content('in'), 'export has the same bytes');
$plugin->volume_snapshot($scfg, 'fb', 'vm-100-disk-0', 'daily');
$plugin->volume_resize($scfg, 'fb', 'vm-100-disk-0', mib(16), 0);
export('vm-100-disk-0', 'snapshot', 'daily');
ok(content('snapshot') eq content('in'), 'export of a snapshot, after its volume grew');
like(refused(sub { export('vm-100-disk-0', 'none', 'weekly') }), qr/no snapshot 'weekly'/, 'of a missing one');

like(refused(sub { import_volume('vm-100-disk-0', 'in', 0) }), qr/exists already/, 'a taken name');
{
    local $SIG{__WARN__} = sub { };
    is(import_volume('vm-100-disk-0', 'in', 1), 'fb:vm-100-disk-1', 'or another one, if it may be');
}
is(import_volume('base-101-disk-0', 'in', 0), 'fb:base-101-disk-0', 'a template');
is(import_volume('base-7-disk-0/vm-102-disk-0', 'in', 0), 'fb:vm-102-disk-0', 'a linked clone stands alone');
export('base-101-disk-0', 'template');
ok(content('template') eq content('in'), 'export of a template');

# Version 9 of the API refuses it itself.
if (PVE::Storage->APIVER() > 9) {
    write_stream('odd', 1000, 'x' x 1000);
    is(import_volume('vm-103-disk-0', 'odd', 0), 'fb:vm-103-disk-0', 'a size that is not a multiple of a sector');
    is($plugin->volume_size_info($scfg, 'fb', 'vm-103-disk-0'), 1024, 'is rounded up');
}

write_stream('long', 1024, 'x' x 8192);
write_stream('headless', 0, '');
like(refused(sub { import_volume('vm-104-disk-0', 'long', 0) }), qr/1024 bytes/, 'more data than its size says');
write_stream('short', mib(8), 'x' x mib(4));
like(refused(sub { import_volume('vm-104-disk-0', 'short', 0) }), qr/8388608 bytes/, 'a stream that was cut');
like(refused(sub { import_volume('vm-104-disk-0', 'headless', 0) }), qr/size/, 'no size');
is_deeply($plugin->list_images('fb', $scfg, 104), [], 'a failed import leaves nothing');
like(refused(sub {
    $plugin->volume_export($scfg, 'fb', stream('>', 'x'), 'vm-100-disk-0', 'qcow2+size', undef, undef, 0);
}), qr/raw\+size/, 'another format');

# Full clones: qemu-img as PVE calls it

is($plugin->alloc_image('fb', $scfg, 105, 'raw', undef, length($data) >> 10), 'vm-105-disk-0', 'the copy');
my ($from, $to) = map { scalar $plugin->path($scfg, $_, 'fb') } qw(vm-100-disk-1 vm-105-disk-0);
waitpid(spawn("$dir/log", qw(qemu-img convert -p -n -f raw -O raw), $from, $to), 0);
is($?, 0, 'qemu-img converts from path to path');
export('vm-105-disk-0', 'copy');
ok(content('copy') eq content('in'), 'with the same bytes');

done_testing();
