package Forebay::Proxmox::Devices;

# Block devices of this node for volumes: containers, and state of TPMs, need one.
#
# qemu-nbd attaches an export to /dev/nbdN and, unlike the kernel's own client, connects again to a server that was
# restarted. No state is kept: a device belongs to the export that the command line of its qemu-nbd names. So a mapping
# is found whichever process made it, and a crash leaves nothing behind.
#
# qemu-nbd runs in a unit of its own. As a child of PVE's daemons or of the unit of a container it would be killed with
# them, before the last writes of the file system have passed it. It stops after the guests and before the server.

use strict;
use warnings;

use Errno qw(EBUSY);
use Fcntl qw(O_EXCL O_RDONLY);
use Time::HiRes qw(sleep);

use PVE::Tools qw(run_command);

# Tests use other directories.
our $SYS = '/sys/block';
our $PROC = '/proc';
our $DEV = '/dev';
our $LOCK = '/run/lock/forebay-nbd.lock';

# Seconds to wait for the lock, and for a device to change its state.
our $LOCK_TIMEOUT_S = 60;
our $CHANGE_TIMEOUT_S = 10;

# The device of an export, or undef. `$label` is unique for each export, on all storages.
sub find {
    my ($label) = @_;

    for my $number (_numbers()) {
        my $found = _label($number);
        return "$DEV/nbd$number" if defined($found) && $found eq $label;
    }
    return undef;
}

# Attaches an export to a free device, which is returned. `$image` are QEMU's options of the export.
sub attach {
    my ($label, $image, $read_only) = @_;

    return _locked(
        sub {
            my $device = find($label);
            return $device if defined($device);
            run_command(['modprobe', 'nbd', 'nbds_max=256', 'max_part=0']) if !_numbers();
            for my $number (_numbers()) {
                next if -e "$SYS/nbd$number/pid";
                $device = "$DEV/nbd$number";
                run_command(_attach_command($label, $image, $read_only, $number));
                return $device if _wait_for(sub { -e "$SYS/nbd$number/pid" && (_label($number) // '') eq $label });
                die "cannot attach '$label' to $device: see 'journalctl -u forebay-nbd$number'\n";
            }
            die "all /dev/nbd devices are in use: load the module nbd with a larger nbds_max\n";
        },
    );
}

# Detaches an export, if it is attached. Dies if the device is mounted, which would lose writes.
sub detach {
    my ($label) = @_;

    # The common case, for each volume of each guest that stops, needs no lock.
    return if !defined(find($label));
    _locked(
        sub {
            my $device = find($label) // return;
            _wait_for(sub { _is_unused($device) })
                or die "cannot detach $device of '$label': it is in use; unmount it first\n";
            run_command(['qemu-nbd', '--disconnect', $device], quiet => 1);
            _wait_for(sub { (find($label) // '') ne $device })
                or die "cannot detach $device of '$label': qemu-nbd does not end\n";
        },
    );
    return;
}

sub _attach_command {
    my ($label, $image, $read_only, $number) = @_;

    my @unit = (
        'systemd-run', '--quiet', '--collect', "--unit=forebay-nbd$number", "--description=$label",
        '--property=Type=forking', '--property=Before=pve-guests.service', '--property=After=forebay.service',
    );
    my @qemu_nbd = (
        'qemu-nbd', '--fork', "--connect=$DEV/nbd$number", "--description=$label", '--persistent',
        '--cache=none', '--discard=unmap', '--image-opts', $image,
    );
    push @qemu_nbd, '--read-only' if $read_only;
    return [@unit, @qemu_nbd];
}

# Kernel names of the devices, as numbers: the regular expression also clears their taint.
sub _numbers {
    opendir(my $dir, $SYS) or return;
    my @numbers = sort { $a <=> $b } map { m/\Anbd([0-9]+)\z/ ? $1 : () } readdir($dir);
    closedir($dir);
    return @numbers;
}

# The label of the export that is attached to a device.
sub _label {
    my ($number) = @_;

    my $pid = _content("$SYS/nbd$number/pid") // return undef;
    return undef if $pid !~ m/\A([0-9]+)\s*\z/;
    # It may be the id of a thread, which has a directory here, too.
    my $arguments = _content("$PROC/$1/cmdline") // return undef;
    for my $argument (split(/\0/, $arguments)) {
        return $1 if $argument =~ m/\A--description=(.+)\z/s;
    }
    return undef;
}

sub _content {
    my ($path) = @_;

    open(my $file, '<', $path) or return undef;
    local $/ = undef;
    my $content = <$file>;
    close($file);
    return $content;
}

# Whether nothing has the device open exclusively. A mount does, in whatever mount namespace it is.
sub _is_unused {
    my ($device) = @_;

    my $unused = sysopen(my $opened, $device, O_RDONLY | O_EXCL);
    return 1 if $unused;
    return 0 if $! == EBUSY;
    die "cannot open $device: $!\n";
}

sub _wait_for {
    my ($condition) = @_;

    for (my $waited_s = 0; $waited_s < $CHANGE_TIMEOUT_S; $waited_s += 0.1) {
        return 1 if $condition->();
        sleep(0.1);
    }
    return $condition->();
}

sub _locked {
    my ($code) = @_;

    my $result = PVE::Tools::lock_file($LOCK, $LOCK_TIMEOUT_S, $code);
    die $@ if $@;
    return $result;
}

1;
