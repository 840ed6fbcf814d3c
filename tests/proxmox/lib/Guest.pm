package Guest;

# A QEMU process that has one disk and no operating system: QEMU's monitor does the I/O of the guest.

use strict;
use warnings;

use Fixture qw(spawn wait_for);
use IO::Socket::UNIX;
use JSON;

# Starts QEMU with these arguments for its disk. `$node` is the name of the disk's top node.
sub start {
    my ($class, $dir, $node, @disk) = @_;

    my $socket = "$dir/qmp.sock";
    unlink $socket;
    my $pid = spawn(
        "$dir/qemu.log", 'stdbuf', '--output=L', 'qemu-system-x86_64', '-machine', 'pc', '-accel', 'tcg', '-m', '64', '-display', 'none', '-nodefaults',
        '-S', '-qmp', "unix:$socket,server=on,wait=off", @disk,
    );
    my $self = bless { pid => $pid, node => $node, log => "$dir/qemu.log" }, $class;
    wait_for('QEMU', sub {
        die "QEMU ended: see $dir/qemu.log\n" if waitpid($pid, 1) == $pid;
        return $self->{monitor} = IO::Socket::UNIX->new(Peer => $socket);
    });
    $self->_read();
    $self->qmp('qmp_capabilities');
    return $self;
}

# The result of a command. Dies with QEMU's error.
sub qmp {
    my ($self, $command, %arguments) = @_;

    print { $self->{monitor} } encode_json({ execute => $command, arguments => \%arguments }), "\n";
    $self->{monitor}->flush();
    while (my $reply = $self->_read()) {
        die "$reply->{error}->{desc}\n" if $reply->{error};
        return $reply->{return} if exists $reply->{return};
    }
    return;
}

# One command of qemu-io on the disk; its output. Dies if it fails or finds another pattern.
sub io {
    my ($self, $command) = @_;

    # QEMU prints what happened, instead of returning it.
    my $before = -s $self->{log};
    my $output = $self->qmp('human-monitor-command', 'command-line' => "qemu-io $self->{node} \"$command\"");
    open(my $log, '<', $self->{log}) or die "$self->{log}: $!\n";
    seek($log, $before, 0);
    $output .= join('', <$log>);
    die "$command: $output\n" if $output =~ m{fail|error|conflict}i;
    return "$command: $output";
}

# The size of the disk.
sub size {
    my ($self) = @_;

    for my $node (@{ $self->qmp('query-named-block-nodes', flat => JSON::true) }) {
        return $node->{image}->{'virtual-size'} if $node->{'node-name'} eq $self->{node} || ($node->{drv} eq 'nbd');
    }
    return undef;
}

sub stop {
    my ($self) = @_;

    eval { $self->qmp('quit') };
    waitpid($self->{pid}, 0);
    return;
}

sub _read {
    my ($self) = @_;

    local $SIG{ALRM} = sub { die "QEMU does not answer: see $self->{log}\n" };
    alarm(120);
    my $line = readline($self->{monitor});
    alarm(0);
    die "QEMU ended: see $self->{log}\n" if !defined($line);
    return decode_json($line);
}

1;
