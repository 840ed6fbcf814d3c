#!/usr/bin/perl
# Block devices for containers. The kernel's part is played by a program that takes the place of systemd-run and qemu-nbd,
# and by a directory that looks like /sys: the machines that run this test have no module nbd.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";
use Fixture qw(plugin refused scratch);
use Test::More;

my $plugin = plugin();
my $dir = scratch();
mkdir("$dir/$_") or die "$_: $!\n" for qw(sys proc dev bin), map { "sys/nbd$_" } 0 .. 2;
for my $number (0 .. 2) {
    open(my $device, '>', "$dir/dev/nbd$number") or die "nbd$number: $!\n";
}
{
    no warnings 'once';
    $Forebay::Proxmox::Devices::SYS = "$dir/sys";
    $Forebay::Proxmox::Devices::PROC = "$dir/proc";
    $Forebay::Proxmox::Devices::DEV = "$dir/dev";
    $Forebay::Proxmox::Devices::LOCK = "$dir/lock";
    $Forebay::Proxmox::Devices::CHANGE_TIMEOUT_S = 1;
}

# Attaches and detaches as qemu-nbd does, and records its arguments.
my $program = <<"END";
#!/usr/bin/perl
my \$dir = '$dir';
open(my \$log, '>>', "\$dir/calls") or die;
print \$log join("\\0", \@ARGV), "\\n";
my (\$number) = "\@ARGV" =~ m!/dev/nbd(\\d+)!;
my \$pid = 1000 + \$number;
exit(1) if -e "\$dir/broken";
if (grep { m/^--connect/ } \@ARGV) {
    my (\$at) = grep { \$ARGV[\$_] eq 'qemu-nbd' } 0 .. \$#ARGV;
    mkdir("\$dir/proc/\$pid");
    open(my \$cmdline, '>', "\$dir/proc/\$pid/cmdline") or die;
    print \$cmdline join("\\0", \@ARGV[\$at .. \$#ARGV]), "\\0";
    close(\$cmdline);
    open(my \$sys, '>', "\$dir/sys/nbd\$number/pid") or die;
    print \$sys "\$pid\\n";
} else {
    unlink("\$dir/sys/nbd\$number/pid");
}
END
for my $name (qw(systemd-run qemu-nbd modprobe)) {
    open(my $file, '>', "$dir/bin/$name") or die "$name: $!\n";
    print $file $program;
    close($file) or die "$name: $!\n";
    chmod(0755, "$dir/bin/$name") or die "$name: $!\n";
}
$ENV{PATH} = "$dir/bin:$ENV{PATH}";

sub calls {
    open(my $log, '<', "$dir/calls") or return [];
    my @calls = map { chomp; [split(/\0/, $_)] } <$log>;
    unlink("$dir/calls");
    return \@calls;
}

my $scfg = { 'forebay-nbd' => '[fd00::5]:10809', 'forebay-reconnect-delay' => 60 };
my $device = $plugin->map_volume('fb', $scfg, 'base-1-disk-0/vm-100-disk-0');
is($device, "$dir/dev/nbd0", 'the first device');
my $call = calls()->[0];
my ($at) = grep { $call->[$_] eq 'qemu-nbd' } 0 .. $#$call;
is_deeply(
    [@$call[$at + 1 .. $#$call]],
    [
        '--fork', "--connect=$dir/dev/nbd0", '--description=forebay:fb:vm-100-disk-0', '--persistent', '--cache=none',
        '--discard=unmap', '--image-opts',
        'driver=raw,file.driver=nbd,file.export=vm-100-disk-0,file.reconnect-delay=60,'
            . 'file.server.host=fd00::5,file.server.port=10809,file.server.type=inet',
    ],
    'qemu-nbd attaches the export',
);
my %unit = map { $_ => 1 } @$call[0 .. $at - 1];
ok($unit{'--unit=forebay-nbd0'} && $unit{'--property=Before=pve-guests.service'}, 'in a unit that outlives its guest');

is($plugin->map_volume('fb', $scfg, 'base-1-disk-0/vm-100-disk-0'), $device, 'a volume that is mapped');
is_deeply(calls(), [], 'is not mapped again');
is($plugin->map_volume('other', $scfg, 'vm-100-disk-0'), "$dir/dev/nbd1", 'the same name on another storage');
is((grep { $_ eq '--read-only' } @{ calls()->[0] }), 0, 'volumes are writable');
is($plugin->map_volume('fb', $scfg, 'vm-100-disk-0', 'vzdump'), "$dir/dev/nbd2", 'a snapshot of it');
is((grep { $_ eq '--read-only' } @{ calls()->[0] }), 1, 'is read-only');
like(refused(sub { $plugin->map_volume('fb', $scfg, 'vm-101-disk-0') }), qr/nbds_max/, 'no free device');
is_deeply(calls(), [], 'none is tried');

$plugin->unmap_volume('fb', $scfg, 'vm-999-disk-0');
is_deeply(calls(), [], 'a volume that is not mapped is not unmapped');
$plugin->deactivate_volume('fb', $scfg, 'vm-100-disk-0');
is_deeply(calls(), [['--disconnect', "$dir/dev/nbd0"]], 'a mapped one is');
is($plugin->map_volume('fb', $scfg, 'base-1-disk-0'), "$dir/dev/nbd0", 'a template takes the free device');
is((grep { $_ eq '--read-only' } @{ calls()->[0] }), 1, 'and is read-only');

# The process of a device has ended, and its number belongs to another one.
open(my $cmdline, '>', "$dir/proc/1001/cmdline") or die "cmdline: $!\n";
print $cmdline "sshd\0";
close($cmdline) or die "cmdline: $!\n";
$plugin->unmap_volume('other', $scfg, 'vm-100-disk-0');
is_deeply(calls(), [], "a device of another process is left alone");

unlink("$dir/sys/nbd1/pid");
open(my $broken, '>', "$dir/broken") or die "broken: $!\n";
like(refused(sub { $plugin->map_volume('fb', $scfg, 'vm-102-disk-0') }), qr/systemd-run|failed/, 'qemu-nbd fails');

done_testing();
