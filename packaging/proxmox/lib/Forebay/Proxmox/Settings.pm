package Forebay::Proxmox::Settings;

# The properties of a storage in storage.cfg, and what they mean.
#
# The names of properties are global in PVE: all that are defined here begin with `forebay-`, so that they can never
# collide with those of another plug-in.

use strict;
use warnings;

use constant DEFAULT_API => 'unix:/run/forebay/control.sock';
use constant DEFAULT_NBD => 'unix:/run/forebay/nbd.sock';
use constant DEFAULT_RECONNECT_DELAY_S => 300;
use constant DEFAULT_WRITE_CACHE => '256M';
use constant DEFAULT_RESET => 'disconnect';

# Paths and hosts appear in URIs and in options of QEMU, so they have no character that has a meaning there.
my $PATH = qr!/[A-Za-z0-9_./-]+!;
my $HOST = qr/[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]/;
my $PORT = qr/[1-9][0-9]{0,4}/;
my $NAMESPACE = qr/[A-Za-z0-9][A-Za-z0-9_-]{0,63}/;
# The names of disks of a storage without a namespace begin like this, so a namespace must not.
my $OF_GUEST = qr/(?:vm|base)-[0-9]+-/;
my $SIZE = qr/([1-9][0-9]{0,15})([KMGT]?)/;
my %UNIT = ('' => 1, K => 1 << 10, M => 1 << 20, G => 1 << 30, T => 1 << 40);

# The schema of the properties that this plug-in adds.
sub properties {
    return {
        'forebay-api' => {
            description => "Address of the API of the Forebay server: unix:PATH, https://HOST:PORT or http://HOST:PORT."
                . " Of a cluster: those of several nodes, separated by commas.",
            type => 'string',
            default => DEFAULT_API,
        },
        'forebay-token-file' => {
            description => "File with a token of the API, for an https address: /etc/pve/priv/storage/STORAGE.forebay-token.",
            type => 'string',
        },
        'forebay-ca-file' => {
            description => "File with the certificate authority of an https address; default: those of the system.",
            type => 'string',
        },
        'forebay-nbd' => {
            description => "Address of the NBD server: unix:PATH or HOST:PORT."
                . " Of a cluster: those of several nodes, separated by commas.",
            type => 'string',
            default => DEFAULT_NBD,
        },
        'forebay-pool' => {
            description => "Pool that the server must have, as in 'rados:vms/desktops'. Another one is refused.",
            type => 'string',
        },
        'forebay-namespace' => {
            description => "Prefix of the names of all volumes, for storages or clusters that share one server.",
            type => 'string',
        },
        'forebay-reconnect-delay' => {
            description => "Seconds for which guests wait for a server that went away before they get errors.",
            type => 'integer',
            minimum => 0,
            maximum => 86400,
            default => DEFAULT_RECONNECT_DELAY_S,
        },
        'forebay-sync' => {
            description => "Durability of writes of new volumes.",
            type => 'string',
            enum => ['flush', 'always', 'never'],
            default => 'flush',
        },
        'forebay-desktops' => {
            description => "Linked clones of templates are desktops: they return to the template's state.",
            type => 'boolean',
            default => 0,
        },
        'forebay-desktop-reset' => {
            description => "When desktops are reset by themselves: when their guest is powered off, or never.",
            type => 'string',
            enum => ['disconnect', 'never'],
            default => DEFAULT_RESET,
        },
        'forebay-write-cache' => {
            description => "RAM for the writes of each desktop: bytes, or a number with K, M, G or T.",
            type => 'string',
            default => DEFAULT_WRITE_CACHE,
        },
    };
}

# The properties that a storage of this type can have.
sub options {
    my %own = map { $_ => { optional => 1 } } keys %{ properties() };
    # A user with the right to change storages must not be able to have a token sent to another server, to have guests
    # read and write the disks of another server, or to reach the disks of another namespace.
    $own{$_}->{fixed} = 1 for qw(forebay-api forebay-token-file forebay-ca-file forebay-nbd forebay-namespace);
    my %common = map { $_ => { optional => 1 } } qw(nodes shared disable content bwlimit);
    return { %common, %own };
}

# The file in which the token of a storage must be. The plug-in runs as root: with a free path, a user with the right to
# add storages could have any file of a node sent to any server. A path that root writes into storage.cfg is not restricted.
sub token_file {
    my ($storeid) = @_;

    $storeid =~ m/\A([A-Za-z][A-Za-z0-9_.-]*)\z/ or die "'$storeid' is not a valid name of a storage\n";
    return "/etc/pve/priv/storage/$1.forebay-token";
}

# Dies if a new storage is not permitted.
sub check_new {
    my ($storeid, $scfg) = @_;

    parse($scfg);
    my $own = token_file($storeid);
    my $file = $scfg->{'forebay-token-file'} // $own;
    die "forebay-token-file '$file' is not valid for this storage: move the token to $own\n" if $file ne $own;
    my $namespace = $scfg->{'forebay-namespace'} // '';
    die "forebay-namespace '$namespace' is not valid: a storage without a namespace would take its volumes for disks of a guest\n"
        if $namespace =~ m/\A$OF_GUEST/;
    return;
}

# The settings of a storage. Dies if they are invalid or contradict each other.
sub parse {
    my ($scfg) = @_;

    # The first address that can be reached is used.
    my $apis = _list('forebay-api', $scfg->{'forebay-api'} // DEFAULT_API, \&_api);
    my $nbds = _list('forebay-nbd', $scfg->{'forebay-nbd'} // DEFAULT_NBD, \&_nbd);
    my $settings = {
        apis => $apis,
        api => $apis->[0],
        nbds => $nbds,
        nbd => $nbds->[0],
        prefix => '',
        reconnect_delay_s => _number($scfg, 'forebay-reconnect-delay', DEFAULT_RECONNECT_DELAY_S, 86400),
        sync => _one_of($scfg, 'forebay-sync', 'flush', qw(flush always never)),
        pool => $scfg->{'forebay-pool'},
    };
    for my $property (qw(token ca)) {
        my $file = _file($scfg, "forebay-$property-file", $apis);
        for my $api (@$apis) {
            $api->{$property} = $api->{tls} ? $file : undef;
        }
    }
    if (defined(my $namespace = $scfg->{'forebay-namespace'})) {
        $namespace =~ m/\A($NAMESPACE)\z/
            or die "forebay-namespace '$namespace' is not valid: use up to 64 letters, digits, '-' and '_'\n";
        $settings->{prefix} = "$1.";
    }
    my $reset = _one_of($scfg, 'forebay-desktop-reset', DEFAULT_RESET, qw(disconnect never));
    my $cache_bytes = _size('forebay-write-cache', $scfg->{'forebay-write-cache'} // DEFAULT_WRITE_CACHE);
    $settings->{desktops} = { write_cache_bytes => $cache_bytes, reset => $reset } if $scfg->{'forebay-desktops'};

    # With a node of one Forebay cluster on each node of Proxmox VE, the sockets of all of them lead to the same
    # volumes. `forebay-pool` makes certain that each of them belongs to that cluster.
    my $is_cluster = ($settings->{pool} // '') =~ m/\Arados:/;
    for my $property (qw(api nbd)) {
        die "a shared storage needs an address that all nodes can reach: set forebay-$property to a host and a port;"
            . " or forebay-pool to the address of a cluster that has a node on each of them\n"
            if $scfg->{shared} && !$is_cluster && grep { defined($_->{path}) } @{ $settings->{"${property}s"} };
    }
    return $settings;
}

# The addresses of a property.
sub _list {
    my ($property, $text, $parse) = @_;

    my @all = map { $parse->($_) } split(/,/, $text, -1);
    die "$property has more than 16 addresses\n" if @all > 16;
    return \@all;
}

sub _api {
    my ($text) = @_;

    return { path => $1, text => $text } if $text =~ m!\Aunix:($PATH)\z!;
    if ($text =~ m!\Ahttp(s?)://($HOST):($PORT)/?\z!) {
        my $is_tls = $1 ? 1 : 0;
        return { %{ _host_and_port($text, $2, $3) }, tls => $is_tls };
    }
    die "forebay-api '$text' is not valid: use unix:PATH, https://HOST:PORT or http://HOST:PORT\n";
}

# A secret is sent only over a connection that is encrypted, to a server that has proved who it is.
sub _file {
    my ($scfg, $property, $apis) = @_;

    my $text = $scfg->{$property} // return undef;
    die "$property is for a forebay-api that begins with https://\n" if !grep { $_->{tls} } @$apis;
    return $1 if $text =~ m!\A($PATH)\z!;
    die "$property '$text' is not valid: use an absolute path\n";
}

sub _nbd {
    my ($text) = @_;

    return { path => $1, text => $text } if $text =~ m!\Aunix:($PATH)\z!;
    return _host_and_port($text, $1, $2) if $text =~ m!\A($HOST):($PORT)\z!;
    die "forebay-nbd '$text' is not valid: use unix:PATH or HOST:PORT\n";
}

sub _host_and_port {
    my ($text, $host, $port) = @_;

    die "the port of '$text' is not valid\n" if $port > 65535;
    $host =~ s/\A\[(.*)\]\z/$1/;
    return { host => $host, port => $port, text => $text };
}

sub _number {
    my ($scfg, $property, $default, $most) = @_;

    my $text = $scfg->{$property} // $default;
    return int($1) if $text =~ m/\A([0-9]{1,9})\z/ && $1 <= $most;
    die "$property '$text' is not valid: use a number up to $most\n";
}

sub _one_of {
    my ($scfg, $property, $default, @values) = @_;

    my $text = $scfg->{$property} // $default;
    for my $value (@values) {
        return $value if $text eq $value;
    }
    die "$property '$text' is not valid: use one of @values\n";
}

sub _size {
    my ($property, $text) = @_;

    return int($1) * $UNIT{$2} if $text =~ m/\A$SIZE\z/;
    die "$property '$text' is not valid: use bytes, or a number with K, M, G or T\n";
}

1;
