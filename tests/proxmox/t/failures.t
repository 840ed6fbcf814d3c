#!/usr/bin/perl -T
# What goes wrong around the plug-in, in taint mode as in PVE's daemons: each failure is reported in time, in words that
# help, and loses nothing.

use strict;
use warnings;

use FindBin;
BEGIN { ($FindBin::Bin) = $FindBin::Bin =~ m/\A(.*)\z/s; }
use lib "$FindBin::Bin/../lib";
use Fixture qw(plugin refused scratch spawn start_server storage wait_for);
use IO::Socket::UNIX;
use Scalar::Util qw(tainted);
use Test::More;
use Time::HiRes qw(time);

my $plugin = plugin();
ok(tainted($0), 'taint mode');

# A server that sends one reply to each client, or none.
sub pretender {
    my ($path, $reply) = @_;

    my $listener = IO::Socket::UNIX->new(Listen => 5, Local => $path) or die "listen: $!\n";
    my $pid = fork() // die "fork: $!\n";
    return $pid if $pid;
    local $SIG{ALRM} = 'DEFAULT';
    alarm(120);
    my @silent;
    while (my $client = $listener->accept()) {
        sysread($client, my $request, 1 << 16);
        if (defined($reply)) {
            syswrite($client, $reply);
            close($client);
        } else {
            push @silent, $client;
        }
    }
    exit(0);
}

# No server, and servers that are not one

my $dir = scratch();
my $absent = storage({ control => "$dir/none", nbd => "$dir/nbd" });
like(refused(sub { $plugin->check_connection('fb', $absent) }), qr/cannot reach Forebay at unix:.*start the server/, 'no server');
like(refused(sub { $plugin->alloc_image('fb', $absent, 100, 'raw', undef, 1024) }), qr/cannot reach/, 'allocating without one');
like(refused(sub { $plugin->status('fb', $absent, {}) }), qr/cannot reach/, 'status without one');
like(refused(sub { $plugin->activate_volume('fb', $absent, 'vm-100-disk-0') }), qr/cannot reach/, 'activating without one');
ok($plugin->deactivate_volume('fb', $absent, 'vm-100-disk-0'), 'a guest stops without one');
like(refused(sub { $plugin->status('fb', storage({ control => '', nbd => '/x' }, 'forebay-api' => 'http://127.0.0.1:1')) }),
    qr/cannot reach/, 'no server over TCP');

my %replies = (
    'not HTTP' => "SSH-2.0-OpenSSH_9.2\r\n\r\n",
    'not JSON' => "HTTP/1.1 200 OK\r\n\r\n<html>",
    'incomplete' => "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}",
    'without an answer' => '',
    'HTTP status 502' => "HTTP/1.1 502 Bad Gateway\r\n\r\n<html>",
);
my @pretenders;
for my $expected (sort keys %replies) {
    my $path = "$dir/" . scalar(@pretenders);
    push @pretenders, pretender($path, $replies{$expected});
    my $other = storage({ control => $path, nbd => "$dir/nbd" });
    like(refused(sub { $plugin->status('fb', $other, {}) }), qr/$expected/, "a reply: $expected");
}
push @pretenders, pretender("$dir/silent", undef);
my $silent = storage({ control => "$dir/silent", nbd => "$dir/nbd" });
my $began = time();
like(refused(sub { $plugin->check_connection('fb', $silent) }), qr/no answer in time/, 'a server that does not answer');
my $took_s = time() - $began;
ok($took_s > 4 && $took_s < 30, "is given up after 5 s (took $took_s s)");
my $api = Forebay::Proxmox::Api->new({ path => "$dir/silent", text => 'silent' }, 1);
like(refused(sub { $api->call(POST => '/volumes', {}) }), qr/unknown whether the request was carried out/, 'a change without an answer');
kill('KILL', @pretenders);
waitpid($_, 0) for @pretenders;

# Clients and names

my $server = start_server();
my $scfg = storage($server);
$plugin->alloc_image('fb', $scfg, 100, 'raw', undef, 65536);
ok($plugin->activate_volume('fb', $scfg, 'vm-100-disk-0'), 'a volume is activated');
like(refused(sub { $plugin->activate_volume('fb', $scfg, 'vm-101-disk-0') }), qr/vm-101-disk-0/, 'a missing one is not');
like(refused(sub { $plugin->activate_volume('fb', $scfg, 'vm-100-disk-0', 'x') }), qr/no snapshot 'x'/, 'nor a missing snapshot');
$plugin->volume_snapshot($scfg, 'fb', 'vm-100-disk-0', 'x');
ok($plugin->activate_volume('fb', $scfg, 'vm-100-disk-0', 'x'), 'a snapshot is');

my $uri = $plugin->path($scfg, 'vm-100-disk-0', 'fb');
my $client = spawn("$dir/client.log", 'qemu-io', '-f', 'raw', '-c', 'sleep 600000', $uri);
my $direct = Forebay::Proxmox::Api->new({ path => $server->{control}, text => 'test' });
wait_for('the client', sub { $direct->call(GET => '/volumes/vm-100-disk-0')->{clients} });
like(refused(sub { $plugin->volume_snapshot_rollback($scfg, 'fb', 'vm-100-disk-0', 'x') }), qr/in use|client/, 'rolling back in use');
like(refused(sub { $plugin->free_image('fb', $scfg, 'vm-100-disk-0') }), qr/in use/, 'removing a volume in use');
is(scalar(keys %{ $plugin->volume_snapshot_info($scfg, 'fb', 'vm-100-disk-0') }), 1, 'its snapshots are left');
like(refused(sub { $plugin->volume_resize($scfg, 'fb', 'vm-100-disk-0', 1 << 30, 0) }), qr/stopped/, 'resizing a volume in use');
$plugin->volume_snapshot_delete($scfg, 'fb', 'vm-100-disk-0', 'x');
like(refused(sub { $plugin->rename_volume($scfg, 'fb', 'vm-100-disk-0', 101) }), qr/in use/, 'renaming a volume in use');
like(refused(sub { $plugin->create_base('fb', $scfg, 'vm-100-disk-0') }), qr/in use|client/, 'making it a template');
is_deeply([map { $_->{volid} } @{ $plugin->list_images('fb', $scfg) }], ['fb:vm-100-disk-0'], 'changes nothing');
kill('KILL', $client);
waitpid($client, 0);
is($plugin->create_base('fb', $scfg, 'vm-100-disk-0'), 'base-100-disk-0', 'without the client it becomes one');

# The pool and TCP

my $tcp = storage($server, 'forebay-api' => "http://127.0.0.1:$server->{http}", 'forebay-nbd' => "127.0.0.1:$server->{tcp}",
    shared => 1);
ok($plugin->check_connection('fb', $tcp), 'over TCP');
is(scalar(@{ $plugin->list_images('fb', $tcp) }), 1, 'also lists');
is($plugin->alloc_image('fb', $tcp, 102, 'raw', undef, 1024), 'vm-102-disk-0', 'also allocates');
ok($plugin->check_connection('fb', storage($server, 'forebay-pool' => "$server->{dir}/pool")), 'the right pool');
like(refused(sub { $plugin->check_connection('fb', storage($server, 'forebay-pool' => 'rados:vms/x')) }),
    qr/instead of 'rados:vms\/x'/, 'another pool');

my ($total, $free, $used, $active) = $plugin->status('fb', $scfg, {});
ok($active && $total > 0 && $free > 0 && $free + $used == $total, 'status');

# Several nodes, the first of which cannot be reached

my @dead = ('unix:/nonexistent/forebay.sock', 'http://127.0.0.1:1');
my $second = storage($server, 'forebay-api' => join(',', @dead, "unix:$server->{control}"),
    'forebay-nbd' => "127.0.0.1:1,unix:$server->{nbd}");
ok($plugin->check_connection('fb', $second), 'the next node is used');
is($plugin->alloc_image('fb', $second, 103, 'raw', undef, 1024), 'vm-103-disk-0', '... for changes, too');
is($plugin->path($second, 'vm-103-disk-0', 'fb'), "nbd+unix:///vm-103-disk-0?socket=$server->{nbd}", '... and for NBD');
my $none = storage($server, 'forebay-api' => join(',', @dead));
like(refused(sub { $plugin->check_connection('fb', $none) }), qr/nonexistent.*\n.*127\.0\.0\.1:1/, 'all nodes are named');

# A node that has received a request and does not answer: what it has done is not known.
my $mute = IO::Socket::UNIX->new(Listen => 16, Local => "$dir/mute.sock") or die "listen: $!\n";
my $listener = fork() // die "fork: $!\n";
if ($listener == 0) {
    while (my $client = $mute->accept()) {
        sysread($client, my $request, 1 << 16);
        close($client);
    }
    POSIX::_exit(0);
}
my $half = storage($server, 'forebay-api' => "unix:$dir/mute.sock,unix:$server->{control}");
is(scalar($plugin->volume_size_info($half, 'fb', 'vm-103-disk-0')), 1 << 20, 'a query is repeated at the next node');
like(refused(sub { $plugin->alloc_image('fb', $half, 104, 'raw', 'vm-104-disk-0', 1024) }), qr/unknown whether/, 'a change is not');
is_deeply($plugin->list_images('fb', $scfg, 104), [], '... so it was made at most once');
kill('KILL', $listener);
waitpid($listener, 0);

# Two processes that allocate

my @workers = map {
    my $pid = open(my $names, '-|') // die "fork: $!\n";
    if ($pid == 0) {
        print map { eval { $plugin->alloc_image('fb', $scfg, 500, 'raw', undef, 1024) } // $@, "\n" } 1 .. 10;
        close(STDOUT);
        POSIX::_exit(0);
    }
    $names
} 1 .. 4;
my @allocated = map { my $names = $_; <$names> } @workers;
chomp @allocated;
my %distinct = map { $_ => 1 } @allocated;
is(scalar(grep { m/\Avm-500-disk-\d+\z/ } keys %distinct), 40, 'four processes get forty different names without a lock')
    or diag("@allocated");

# A full store

my $small = start_server(limit => '256M');
my $full = storage($small);
$plugin->alloc_image('fb', $full, 100, 'raw', undef, 1 << 20);
my $full_uri = $plugin->path($full, 'vm-100-disk-0', 'fb');
my $fill = 'head -c 400M /dev/urandom | nbdcopy - "$1"';
waitpid(spawn("$dir/fill.log", 'sh', '-c', $fill, 'sh', $full_uri), 0);
isnt($?, 0, 'a guest fills the store');
($total, $free, $used) = $plugin->status('fb', $full, {});
ok($free < $total / 3, 'status shows it') or diag("total $total free $free used $used");
$plugin->free_image('fb', $full, 'vm-100-disk-0');
pass('its volume can be removed');
is($plugin->alloc_image('fb', $full, 101, 'raw', undef, 1024), 'vm-101-disk-0', 'and another one allocated');

done_testing();
