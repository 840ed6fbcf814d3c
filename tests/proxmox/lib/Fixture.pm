package Fixture;

# A Forebay server in a temporary directory, and the plug-in as a storage on it.
#
# The plug-in runs on the modules in contract/, or on PVE's own ones if PVE_SOURCES has its repositories.

use strict;
use warnings;

use Exporter qw(import);
use File::Basename qw(dirname);
use File::Temp qw(tempdir);
use Cwd qw(abs_path);
use IO::Socket::INET;
use POSIX ();
use Time::HiRes qw(sleep time);

our @EXPORT_OK = qw(binary plugin real spawn start_server stop_server storage refused wait_for scratch mib);

my $PLUGIN = 'PVE::Storage::Custom::ForebayPlugin';
my $START_TIMEOUT_S = 60;

my %processes;
my $owner = $$;

my $TESTS = _trusted(abs_path(dirname(__FILE__) . '/..'));
if (real()) {
    my $sources = _trusted($ENV{PVE_SOURCES});
    unshift @INC, map { "$sources/$_/src" }
        qw(pve-storage pve-common pve-cluster pve-access-control pve-guest-common qemu-server pve-container);
    require WithoutNode;
} else {
    unshift @INC, "$TESTS/contract";
}
unshift @INC, _trusted($ENV{FOREBAY_PLUGIN_LIB} // "$TESTS/../../packaging/proxmox/lib");
$ENV{PATH} = '/usr/sbin:/usr/bin:/sbin:/bin';
delete @ENV{qw(IFS CDPATH ENV BASH_ENV)};

# A path that the invoker of the tests chose. Some tests run in taint mode.
sub _trusted {
    my ($path) = @_;

    return $path =~ m/\A(.*)\z/s ? $1 : undef;
}

# Whether PVE's own modules are used.
sub real {
    return defined($ENV{PVE_SOURCES});
}

# The class of the plug-in. PVE registers those of others before it initializes all of them, and that only once.
sub plugin {
    return $PLUGIN if $INC{'PVE/Storage.pm'};
    require PVE::Storage::Custom::ForebayPlugin;
    $PLUGIN->register() if real();
    require PVE::Storage;
    return $PLUGIN;
}

sub mib {
    my ($count) = @_;

    return $count << 20;
}

# A directory that is removed when the test ends.
sub scratch {
    return tempdir('forebay-pve-' . ('X' x 6), TMPDIR => 1, CLEANUP => 1);
}

# The server's binary.
sub binary {
    return _trusted($ENV{FOREBAY_BIN} // "$TESTS/../../target/debug/forebay");
}

# A server: { dir, control, nbd, tcp, http, pid }. `%options`: `limit` of the store, `dir` of an earlier server,
# `https` with certificate and key.
sub start_server {
    my (%options) = @_;

    my $dir = $options{dir} // scratch();
    my $memory = tempdir('forebay-test-' . ('X' x 6), DIR => '/dev/shm', CLEANUP => 1);
    my $server = {
        dir => $dir,
        control => "$dir/control.sock",
        nbd => "$dir/nbd.sock",
        tcp => $options{tcp} // _free_port(),
        http => $options{http} // _free_port(),
        memory => $options{memory} // $memory,
    };
    open(my $config, '>', "$dir/forebay.toml") or die "forebay.toml: $!\n";
    print $config "[store]\nlimit = \"$options{limit}\"\n" if $options{limit};
    close($config) or die "forebay.toml: $!\n";
    unlink $server->{control};

    my @command = (
        binary(), 'serve', '--config', "$dir/forebay.toml", '--data', "$dir/pool",
        '--socket', $server->{control}, '--nbd', "unix:$server->{nbd}", '--nbd', "127.0.0.1:$server->{tcp}",
        '--http', "127.0.0.1:$server->{http}", '--memory-dir', $server->{memory}, '--cores', '1', '--cache', '64M',
    );
    push @command, '--http-certificate', $options{https}[0], '--http-key', $options{https}[1] if $options{https};
    my $pid = $server->{pid} = spawn("$dir/log", @command);
    wait_for("the server in $dir", sub {
        die "the server ended: see $dir/log\n" if waitpid($pid, 1) == $pid;
        return -S $server->{control} && -S $server->{nbd};
    });
    return $server;
}

sub stop_server {
    my ($server, $signal) = @_;

    kill($signal // 'TERM', $server->{pid});
    waitpid($server->{pid}, 0);
    return;
}

# Starts a program that ends with the test, and appends its output to a file.
sub spawn {
    my ($log, @command) = @_;

    my $pid = fork() // die "fork: $!\n";
    if ($pid == 0) {
        open(STDIN, '<', '/dev/null');
        open(STDOUT, '>>', $log);
        open(STDERR, '>&', \*STDOUT);
        exec('setpriv', '--pdeathsig', 'KILL', @command) or POSIX::_exit(127);
    }
    $processes{$pid} = 1;
    return $pid;
}

# The configuration of a storage on a server, as PVE's parser returns it.
sub storage {
    my ($server, %properties) = @_;

    return {
        type => 'forebay',
        content => { images => 1, rootdir => 1 },
        'forebay-api' => "unix:$server->{control}",
        'forebay-nbd' => "unix:$server->{nbd}",
        %properties,
    };
}

# The error of code that must fail.
sub refused {
    my ($code) = @_;

    my $done = eval { $code->(); 1 };
    return $done ? 'not refused' : $@;
}

sub wait_for {
    my ($what, $condition, $timeout_s) = @_;

    my $deadline = time() + ($timeout_s // $START_TIMEOUT_S);
    while (!$condition->()) {
        die "$what: not in time\n" if time() > $deadline;
        sleep(0.05);
    }
    return;
}

sub _free_port {
    my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1') or die "no free port: $!\n";
    return $socket->sockport();
}

END {
    if ($$ == $owner) {
        my $status = $?;
        for my $pid (keys %processes) {
            kill('KILL', $pid);
            waitpid($pid, 0);
        }
        $? = $status;
    }
}

1;
