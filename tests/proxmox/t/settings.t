#!/usr/bin/perl
# Properties in storage.cfg and names of volumes: what is accepted, and what is refused with which words.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";
use Fixture qw(plugin refused scratch);
use Test::More;

my $plugin = plugin();

# Versions of the API

my %expected = (8 => 9, (map { $_ => $_ } 9 .. 15), 16 => 15);
for my $version (sort { $a <=> $b } keys %expected) {
    no warnings qw(once prototype redefine);
    local *PVE::Storage::APIVER = sub { $version };
    is($plugin->api(), $expected{$version}, "on version $version of the API");
}

# Properties

my $properties = $plugin->properties();
is_deeply([grep { !m/\Aforebay-/ } keys %$properties], [], 'all properties have the prefix of this plug-in');
is_deeply([grep { !$plugin->options()->{$_} } keys %$properties], [], 'all properties can be set');
is_deeply(
    [sort grep { $plugin->options()->{$_}->{fixed} } keys %$properties],
    [qw(forebay-api forebay-ca-file forebay-namespace forebay-nbd forebay-token-file)],
    'where a token goes, and which disks a storage has, cannot be changed',
);
my $tls = 'https://10.0.0.5:8443';
for my $file ('/etc/shadow', '/etc/pve/priv/storage/other.forebay-token', '/etc/pve/priv/storage/../fb.forebay-token') {
    like(refused(sub { $plugin->on_add_hook('fb', { 'forebay-api' => $tls, 'forebay-token-file' => $file }) }),
        qr!move the token to /etc/pve/priv/storage/fb\.forebay-token$!m, "$file is not sent as a token");
}
my $own = '/etc/pve/priv/storage/fb.forebay-token';
ok(!defined($plugin->on_add_hook('fb', { 'forebay-api' => $tls, 'forebay-token-file' => $own })), 'its own token is');
{
    my @warnings;
    my $file = scratch() . '/fb.forebay-token';
    no warnings qw(once redefine);
    local *Forebay::Proxmox::Settings::token_file = sub { $file };
    local $SIG{__WARN__} = sub { push @warnings, @_ };
    open(my $out, '>', $file) or die "$file: $!\n";
    close($out);
    $plugin->on_delete_hook('fb', { 'forebay-api' => $tls, 'forebay-token-file' => "$file.other" });
    ok(-e $file, 'a token that is not of the storage stays');
    $plugin->on_delete_hook('fb', { 'forebay-api' => $tls, 'forebay-token-file' => $file }) for 1 .. 2;
    ok(!-e $file, 'a token is removed with its storage');
    is_deeply(\@warnings, [], '... which may be repeated');
}

sub values_of {
    my ($files) = @_;

    return @$files{qw(forebay-token-file forebay-ca-file)};
}

sub settings {
    return Forebay::Proxmox::Settings::parse({@_});
}

is(settings()->{api}->{path}, '/run/forebay/control.sock', 'the default is the control socket of the unit');
is(settings()->{reconnect_delay_s}, 300, 'guests wait for five minutes by default');
is_deeply(
    settings('forebay-api' => 'http://[fd00::5]:8080')->{api},
    { host => 'fd00::5', port => 8080, text => 'http://[fd00::5]:8080', tls => 0, token => undef, ca => undef },
    'an IPv6 address',
);
my %files = ('forebay-token-file' => '/etc/pve/priv/forebay.token', 'forebay-ca-file' => '/etc/pve/priv/forebay.pem');
my $api = settings('forebay-api' => 'https://storage.example:8443', %files)->{api};
is_deeply([@$api{qw(host port tls token ca)}], ['storage.example', 8443, 1, values_of(\%files)], 'TLS and a token');
is_deeply(
    settings('forebay-desktops' => 1, 'forebay-write-cache' => '2G')->{desktops},
    { write_cache_bytes => 2 << 30, reset => 'disconnect' },
    'desktops',
);
is(settings('forebay-write-cache' => '2G')->{desktops}, undef, 'the size of the cache alone makes no desktops');
is(settings('forebay-namespace' => 'acme')->{prefix}, 'acme.', 'a namespace');
for my $namespace (qw(vm-100-a base-9-x vm-100-)) {
    like(refused(sub { $plugin->on_add_hook('fb', { 'forebay-namespace' => $namespace }) }),
        qr/forebay-namespace '$namespace' is not valid/, "the namespace $namespace, which looks like a disk of a guest");
    ok(settings('forebay-namespace' => $namespace), '... of a storage that exists is used');
}
ok(!defined($plugin->on_add_hook('fb', { 'forebay-namespace' => $_ })), "the namespace $_") for qw(acme vm vm-east base-9);
ok(settings(shared => 1, 'forebay-api' => 'http://10.0.0.5:8080', 'forebay-nbd' => '10.0.0.5:10809'), 'a shared storage');

# Several nodes of a cluster

my $nodes = settings('forebay-api' => 'unix:/run/a.sock,https://10.0.0.1:8443,https://10.0.0.2:8443', %files);
is_deeply([map { $_->{text} } @{ $nodes->{apis} }],
    ['unix:/run/a.sock', 'https://10.0.0.1:8443', 'https://10.0.0.2:8443'], 'several addresses of the API');
is_deeply([map { $_->{token} } @{ $nodes->{apis} }], [undef, ($files{'forebay-token-file'}) x 2],
    'a token is for those with TLS');
is_deeply([map { $_->{port} } @{ settings('forebay-nbd' => '10.0.0.1:1,[fd00::2]:2')->{nbds} }], [1, 2], 'of NBD');
my %local = (shared => 1, 'forebay-api' => 'unix:/run/a.sock', 'forebay-nbd' => 'unix:/run/b.sock');
ok(settings(%local, 'forebay-pool' => 'rados:vms/desktops'), 'a node of one cluster on each node');
like(refused(sub { settings(%local, 'forebay-pool' => '/var/lib/forebay') }), qr/all nodes can reach/,
    'the same directory on each node is not one pool');

for my $case (
    ['forebay-api', 'http://a:1,,http://b:1', qr/use unix:PATH, https/],
    ['forebay-api', 'http://a:1,', qr/use unix:PATH, https/],
    ['forebay-nbd', join(',', map { "a:$_" } 1 .. 17), qr/more than 16/],
    ['forebay-api', '/run/forebay/control.sock', qr/use unix:PATH, https/],
    ['forebay-api', 'unix:relative', qr/use unix:PATH/],
    ['forebay-api', "unix:/a\n", qr/use unix:PATH/],
    ['forebay-api', 'https://host', qr/use unix:PATH/],
    ['forebay-token-file', '/etc/pve/priv/forebay.token', qr/for a forebay-api that begins with https/],
    ['forebay-api', 'http://host', qr/use unix:PATH/],
    ['forebay-api', 'http://user@host:80', qr/use unix:PATH/],
    ['forebay-api', 'http://host:70000', qr/port/],
    ['forebay-nbd', 'unix:/a,file.filename=/etc/shadow', qr/use unix:PATH or HOST:PORT/],
    ['forebay-nbd', 'unix:/a?socket=/b', qr/use unix:PATH/],
    ['forebay-nbd', 'nbd://host:1', qr/use unix:PATH/],
    ['forebay-nbd', 'host', qr/use unix:PATH/],
    ['forebay-namespace', 'a.b', qr/letters, digits/],
    ['forebay-namespace', 'a@b', qr/letters, digits/],
    ['forebay-namespace', '', qr/letters, digits/],
    ['forebay-reconnect-delay', '-1', qr/number up to 86400/],
    ['forebay-reconnect-delay', '86401', qr/number up to 86400/],
    ['forebay-sync', 'sometimes', qr/flush always never/],
    ['forebay-desktop-reset', 'reboot', qr/disconnect never/],
    ['forebay-write-cache', '1.5G', qr/K, M, G or T/],
    ['forebay-write-cache', '0', qr/K, M, G or T/],
    ['shared', 1, qr/all nodes can reach/],
) {
    my ($property, $value, $expected) = @$case;
    my $shown = $value =~ s/\n/\\n/r;
    like(refused(sub { settings($property => $value) }), $expected, "$property '$shown' is refused");
    like(refused(sub { $plugin->on_add_hook('fb', { $property => $value }) }), $expected, '... when it is added');
    like(refused(sub { $plugin->on_update_hook_full('fb', {}, { $property => $value }, [], {}) }),
        $expected, '... when it is changed');
}
like(
    refused(sub {
        my $scfg = { shared => 1, 'forebay-api' => 'http://a:1', 'forebay-nbd' => 'a:2' };
        $plugin->on_update_hook_full('fb', $scfg, {}, ['forebay-nbd'], {});
    }),
    qr/all nodes can reach/,
    'a property that others need is not deleted',
);

# Names of volumes

is_deeply([$plugin->parse_volname('vm-100-disk-0')],
    ['images', 'vm-100-disk-0', 100, undef, undef, undef, 'raw'], 'a volume');
is_deeply([$plugin->parse_volname('base-100-disk-0')],
    ['images', 'base-100-disk-0', 100, undef, undef, 1, 'raw'], 'a template');
is_deeply([$plugin->parse_volname('base-100-disk-0/vm-101-disk-1')],
    ['images', 'vm-101-disk-1', 101, 'base-100-disk-0', 100, undef, 'raw'], 'a linked clone');
is(($plugin->parse_volname("vm-100-$_"))[1], "vm-100-$_", "vm-100-$_")
    for qw(cloudinit state-before_update fleece-0 disk-12);
for my $name (
    '', 'golden', 'vm-0-disk-0', 'vm-x-disk-0', 'vm-100-', "vm-100-disk-0\n", 'vm-100-disk-0@snap', 'vm-100-a b',
    'vm-100-disk-0/vm-101-disk-0', 'base-1-a/base-2-b/vm-3-c', '/vm-100-disk-0', '../vm-100-disk-0',
    'vm-100-disk-0,file.filename=/etc/shadow', 'vm-100-disk-0?socket=/tmp/x', 'vm-100-$(reboot)', 'vm-100-' . 'a' x 200,
) {
    like(refused(sub { $plugin->parse_volname($name) }), qr/is not the name of a volume/, 'refused: ' . $name =~ s/\n/\\n/r);
}

# Paths

my $tcp = { 'forebay-nbd' => '10.0.0.5:10809', 'forebay-namespace' => 'acme' };
is($plugin->path({}, 'base-1-a/vm-2-b', 'fb', 'daily'), 'nbd+unix:///vm-2-b@daily?socket=/run/forebay/nbd.sock', 'a snapshot');
is($plugin->path($tcp, 'vm-2-b', 'fb'), 'nbd://10.0.0.5:10809/acme.vm-2-b', 'over TCP, in a namespace');
is_deeply([$plugin->path($tcp, 'vm-2-b', 'fb')], ['nbd://10.0.0.5:10809/acme.vm-2-b', 2, 'images'], 'with its owner');
is_deeply(
    $plugin->qemu_blockdev_options($tcp, 'fb', 'vm-2-b', 'pc-i440fx-10.0', { 'snapshot-name' => 'daily' }),
    {
        driver => 'nbd',
        server => { type => 'inet', host => '10.0.0.5', port => '10809' },
        export => 'acme.vm-2-b@daily',
        'reconnect-delay' => 300,
    },
    'options of QEMU',
);
like(refused(sub { $plugin->path({}, 'vm-2-b', 'fb', 'a@b') }), qr/not a valid name of a snapshot/, 'a bad name of a snapshot');

done_testing();
