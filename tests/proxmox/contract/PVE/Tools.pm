package PVE::Tools;

# What the plug-in may expect of PVE::Tools: programs that are run without a shell, and locks on files.
# t/contract.t checks that the real module behaves in the same way.

use strict;
use warnings;

use Exporter qw(import);
use Fcntl qw(LOCK_EX);

our @EXPORT_OK = qw(run_command);

# Options: `input` and `output` are descriptors as in '<&3', `quiet` drops output. Dies if the program fails.
sub run_command {
    my ($command, %options) = @_;

    die "a list is needed\n" if ref($command) ne 'ARRAY';
    my $pid = fork() // die "fork: $!\n";
    if ($pid == 0) {
        open(STDIN, $options{input} // '</dev/null') or die "input: $!\n";
        open(STDOUT, $options{output}) or die "output: $!\n" if $options{output};
        open(STDOUT, '>', '/dev/null') if $options{quiet};
        exec { $command->[0] } @$command or print STDERR "cannot run $command->[0]: $!\n";
        require POSIX;
        POSIX::_exit(127);
    }
    waitpid($pid, 0);
    die "command '@$command' failed: exit code " . ($? >> 8) . "\n" if $?;
    return 0;
}

# The result of `$code`, which runs under the lock. An error is in `$@`, not thrown.
sub lock_file {
    my ($path, $timeout_s, $code, @arguments) = @_;

    open(my $file, '>>', $path) or do { $@ = "cannot open $path: $!\n"; return undef; };
    flock($file, LOCK_EX) or do { $@ = "cannot lock $path: $!\n"; return undef; };
    return eval { $code->(@arguments) };
}

1;
