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
use Time::HiRes qw(sleep time);

our @EXPORT_OK = qw(plugin real start_server storage refused wait_for scratch mib);

my $TESTS = abs_path(dirname(__FILE__) . '/..');
my $PLUGIN = 'PVE::Storage::Custom::ForebayPlugin';
my $START_TIMEOUT_S = 60;

my %processes;
my $owner = $$;

BEGIN {
    my $tests = abs_path(dirname(__FILE__) . '/..');
    if (my $sources = $ENV{PVE_SOURCES}) {
        unshift @INC, map { "$sources/$_/src" }
            qw(pve-storage pve-common pve-cluster pve-access-control pve-guest-common qemu-server pve-container);
        require WithoutNode;
    } else {
        unshift @INC, "$tests/contract";
    }
    unshift @INC, $ENV{FOREBAY_PLUGIN_LIB} // "$tests/../../packaging/proxmox/lib";
    # Tests in taint mode have no PATH of their own.
    $ENV{PATH} = '/usr/sbin:/usr/bin:/sbin:/bin';
}

# Whether PVE's own modules are used.
sub real {
    return defined($ENV{PVE_SOURCES});
}

# The class of the plug-in, as PVE loads and registers it.
sub plugin {
    require PVE::Storage;
    return $PLUGIN if $PLUGIN->can('api');
    require PVE::Storage::Custom::ForebayPlugin;
    if (real()) {
        $PLUGIN->register();
        PVE::Storage::Plugin->init();
    }
    return $PLUGIN;
}

sub mib {
    my ($count) = @_;

    return $count << 20;
}

# A directory that is removed when the test ends.
sub scratch {
    return tempdir('forebay-pve-XXXXXX', TMPDIR => 1, CLEANUP => 1);
}

# A server: { dir, control, nbd, tcp, http, pid }. `%options`: `limit` of the store, `dir` of an earlier server.
sub start_server {
    my (%options) = @_;

    my $dir = $options{dir} // scratch();
    my $memory = tempdir('forebay-test-XXXXXX', DIR => '/dev/shm', CLEANUP => 1);
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

    my ($bin) = ($ENV{FOREBAY_BIN} // "$TESTS/../../target/debug/forebay") =~ m/\A(.*)\z/s;
    my @command = (
        'setpriv', '--pdeathsig', 'KILL', $bin, 'serve', '--config', "$dir/forebay.toml", '--data', "$dir/pool",
        '--socket', $server->{control}, '--nbd', "unix:$server->{nbd}", '--nbd', "127.0.0.1:$server->{tcp}",
        '--http', "127.0.0.1:$server->{http}", '--memory-dir', $server->{memory}, '--cores', '1', '--cache', '64M',
    );
    my $pid = fork() // die "fork: $!\n";
    if ($pid == 0) {
        open(STDIN, '<', '/dev/null');
        open(STDOUT, '>>', "$dir/log");
        open(STDERR, '>&', \*STDOUT);
        exec { $command[0] } @command or POSIX::_exit(127);
    }
    $processes{$pid} = 1;
    $server->{pid} = $pid;
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
    delete $processes{ $server->{pid} };
    return;
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
