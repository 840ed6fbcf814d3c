#!/usr/bin/perl -T
# The API over TLS with a token, in taint mode: accepted, and refused with words that help.

use strict;
use warnings;

use FindBin;
BEGIN { ($FindBin::Bin) = $FindBin::Bin =~ m/\A(.*)\z/s; }
use lib "$FindBin::Bin/../lib";
use Fixture qw(binary plugin refused scratch start_server storage);
use Test::More;

my $plugin = plugin();
my $dir = scratch();

sub certificate {
    my ($name) = @_;

    # It prints its progress.
    open(my $stderr, '>&', \*STDERR) or die "dup: $!\n";
    open(STDERR, '>', '/dev/null');
    my $status = system('openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2',
        '-subj', "/CN=$name", '-addext', 'subjectAltName=IP:127.0.0.1', '-out', "$dir/$name.pem", '-keyout', "$dir/$name.key");
    open(STDERR, '>&', $stderr) or die "dup: $!\n";
    die "openssl failed\n" if $status != 0;
    chmod(0600, "$dir/$name.key");
    return;
}

sub write_file {
    my ($name, $text) = @_;

    open(my $out, '>', "$dir/$name") or die "$name: $!\n";
    print $out $text;
    close($out) or die "$name: $!\n";
    chmod(0600, "$dir/$name");
    return "$dir/$name";
}

certificate($_) for qw(server other);
my $server = start_server(https => ["$dir/server.pem", "$dir/server.key"]);

sub token {
    my ($name, @args) = @_;

    open(my $out, '-|', binary(), '--socket', $server->{control}, 'token', 'create', $name, @args) or die "token: $!\n";
    my ($token) = (<$out> // '') =~ m/\A(\S+)\Z/;
    close($out) or die "'forebay token create' failed\n";
    return "$token\n";
}

my $secret = token('pve', '--role', 'administrator');
my $admin = write_file('admin', $secret);
my $open = write_file('open', $secret);
chmod(0640, $open);
my $reader = write_file('reader', token('monitoring', '--role', 'reader'));

sub over_tls {
    my (%properties) = @_;

    return storage(
        $server,
        'forebay-api' => "https://127.0.0.1:$server->{http}",
        'forebay-token-file' => $admin,
        'forebay-ca-file' => "$dir/server.pem",
        %properties,
    );
}

my $scfg = over_tls();
is($plugin->alloc_image('fb', $scfg, 100, 'raw', undef, 65536), 'vm-100-disk-0', 'a volume is allocated');
ok(($plugin->status('fb', $scfg, {}))[3], 'the storage is active');
$plugin->alloc_image('fb', $scfg, 101, 'raw', "vm-101-disk-$_", 1024) for 0 .. 199;
is(scalar(@{ $plugin->list_images('fb', $scfg, 101, undef, {}) }), 200, 'a reply of many records of TLS');
ok(!defined($plugin->free_image('fb', $scfg, 'vm-100-disk-0', 0)), 'a volume is removed');

for my $case (
    ['forebay-ca-file', "$dir/other.pem", qr/certificate.*forebay-ca-file/, 'a server that has not proved who it is'],
    ['forebay-token-file', "$dir/none", qr/cannot read the token.*forebay-token-file/, 'no token'],
    ['forebay-token-file', write_file('empty', "\n"), qr/has no token.*forebay token create/, 'an empty file'],
    ['forebay-token-file', write_file('lines', "a b\r\nX-Evil: 1\n"), qr/has no token/, 'a file with something else'],
    ['forebay-token-file', $open, qr/mode 0640.*chmod 600/, 'a file that others can read'],
    ['forebay-token-file', write_file('wrong', "forebay_0000\n"), qr/token/, 'a wrong token'],
) {
    my ($property, $value, $expected, $what) = @$case;
    like(refused(sub { $plugin->status('fb', over_tls($property => $value), {}) }), $expected, $what);
}

# Two clusters that share the server

my %clusters = map {
    my $token = write_file("token-$_", token($_, '--role', 'provisioner', '--disks', "$_.*"));
    ($_ => over_tls('forebay-token-file' => $token, 'forebay-namespace' => $_));
} qw(acme other);
my ($acme, $other) = @clusters{qw(acme other)};
ok($plugin->activate_storage('fb', $acme, {}), 'a provisioner activates the storage of its cluster');
my ($total, $available, $used, $is_active) = $plugin->status('fb', $acme, {});
ok($is_active && $total >= $available && $total == $available + $used, '... and sees the room');
$plugin->alloc_image('fb', $_, 300, 'raw', 'vm-300-disk-0', 1024) for $acme, $other;
is($plugin->create_base('fb', $acme, 'vm-300-disk-0'), 'base-300-disk-0', '... makes a template');
is($plugin->clone_image($acme, 'fb', 'base-300-disk-0', 301), 'base-300-disk-0/vm-301-disk-0', '... and a linked clone of it');
$plugin->volume_snapshot($acme, 'fb', 'vm-301-disk-0', 'daily');
$plugin->volume_snapshot_delete($acme, 'fb', 'vm-301-disk-0', 'daily', 0);
is($plugin->rename_volume($acme, 'fb', 'base-300-disk-0/vm-301-disk-0', 302, undef), 'fb:base-300-disk-0/vm-302-disk-0',
    '... renames a volume');
is_deeply([map { $_->{volid} } @{ $plugin->list_images('fb', $other, undef, undef, {}) }],
    ['fb:vm-300-disk-0'], 'the other cluster sees its own volumes');
my $intruder = { %$other, 'forebay-namespace' => 'acme' };
like(refused(sub { $plugin->free_image('fb', $intruder, 'vm-302-disk-0', 0) }), qr/no volume, snapshot or image is named/,
    '... and with a changed namespace none of the first');
like(refused(sub { $plugin->alloc_image('fb', $intruder, 400, 'raw', undef, 1024) }), qr/Forebay: /, '... nor creates any there');
$plugin->free_image('fb', $acme, 'vm-302-disk-0', 0);
$plugin->free_image('fb', $acme, 'base-300-disk-0', 1);

my $as_reader = over_tls('forebay-token-file' => $reader);
ok(($plugin->status('fb', $as_reader, {}))[3], 'a reader sees the storage');
like(refused(sub { $plugin->alloc_image('fb', $as_reader, 102, 'raw', undef, 1024) }), qr/Forebay: /, 'and changes nothing');
like(refused(sub { $plugin->status('fb', storage($server, 'forebay-api' => "http://127.0.0.1:$server->{http}"), {}) }),
    qr/Forebay/, 'the same address without TLS');

done_testing();
