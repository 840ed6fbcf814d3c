package Forebay::Proxmox::Api;

# A client of Forebay's HTTP API, on its control socket, or over TCP with or without TLS.
#
# Each request has a separate connection and one deadline. The plug-in runs inside PVE's daemons, whose storage locks use
# alarm(2), so nothing here may: all waiting is select(2). A reply is used only if it is complete.
#
# Of the nodes of a cluster, the first one that can be reached is used. The next one is tried as long as it is certain
# that no node has received a change.
#
# PVE's daemons run in taint mode, where replies are tainted. Callers validate what they pass on to other programs.

use strict;
use warnings;

use Fcntl qw(:mode);
use IO::Select;
use IO::Socket::IP;
use IO::Socket::UNIX;
use JSON;
use Socket qw(SOCK_STREAM);
use Time::HiRes qw(time);

use constant CONNECT_TIMEOUT_S => 5;

# A node that does not accept a connection within this time is passed over.
use constant PROBE_TIMEOUT_S => 2;

# The server retries for a second what a closing connection still holds. Beyond that, only a store that does not
# answer is slow.
use constant REQUEST_TIMEOUT_S => 60;

# A list of 100,000 disks has 50 MiB.
use constant MAX_REPLY_BYTES => 256 << 20;

# `$addresses` is { path } or { host, port, tls, token, ca }, as Forebay::Proxmox::Settings makes it, or a list of these.
# `$timeout_s` bounds each request.
sub new {
    my ($class, $addresses, $timeout_s) = @_;

    $addresses = [$addresses] if ref($addresses) ne 'ARRAY';
    return bless { addresses => [@$addresses], timeout_s => $timeout_s // REQUEST_TIMEOUT_S }, $class;
}

# The result of a request. Dies with a line that states what to do.
sub call {
    my ($self, $method, $path, $body) = @_;

    my ($result, $error) = $self->attempt($method, $path, $body);
    die "$error->{message}\n" if $error;
    return $result;
}

# The result of a request, or what the server refused it for: ($result, undef) or (undef, { code, message }). Dies if
# there is no answer.
sub attempt {
    my ($self, $method, $path, $body) = @_;

    # A broken connection is an error here, not a signal; closing a connection with TLS writes to it, too.
    local $SIG{PIPE} = 'IGNORE';
    my $deadline = time() + $self->{timeout_s};
    my ($address, $status, $text, @errors);
    for my $attempt (1 .. @{ $self->{addresses} }) {
        $address = $self->{addresses}->[0];
        ($status, $text) = eval { $self->_ask($address, [$method, $path, $body], $deadline) };
        last if !$@;
        push @errors, $@;
        # A change that a node has received is not sent to another one.
        last if $self->{has_sent} && $method ne 'GET';
        # The next request begins with the node that answers this one.
        push @{ $self->{addresses} }, shift(@{ $self->{addresses} });
        undef $status;
    }
    die join('', @errors) if !defined($status);

    my $data = eval { decode_json($text) };
    if ($status < 200 || $status > 299) {
        # RFC 9457 has the text in `detail`.
        my $error = ref($data) eq 'HASH' ? ($data->{error} // $data) : undef;
        $error = {} if ref($error) ne 'HASH';
        my $message = $error->{message} // $error->{detail} // "HTTP status $status";
        $message =~ s/[[:cntrl:]]+/ /g;
        return (undef, { code => $error->{code} // '', message => "Forebay: $message" });
    }
    die "Forebay at $address->{text}: the reply is not JSON; is this the address of its API?\n"
        if !ref($data);
    return ($data, undef);
}

# The status and the text of the answer to a request at this address.
sub _ask {
    my ($self, $address, $request, $deadline) = @_;

    $self->{has_sent} = 0;
    my $text = _request($address, @$request);
    my $socket = $self->_connect($address);
    $self->{has_sent} = 1;
    my @answer = eval {
        _send($socket, $text, $deadline);
        _parse(_receive($socket, $deadline));
    };
    return @answer if !$@;
    my $err = $@;
    chomp $err;
    my $unknown = $request->[0] eq 'GET' ? '' : ', and it is unknown whether the request was carried out';
    die "Forebay at $address->{text}: $err$unknown\n";
}

# A name in a path.
sub escape {
    my ($name) = @_;

    utf8::encode($name) if utf8::is_utf8($name);
    $name =~ s/([^A-Za-z0-9_.~-])/sprintf('%%%02X', ord($1))/ge;
    return $name;
}

# Whether a server accepts connections at an address.
sub is_reachable {
    my ($address) = @_;

    return defined(_open($address, PROBE_TIMEOUT_S)) ? 1 : 0;
}

sub _open {
    my ($address, $timeout_s) = @_;

    return IO::Socket::UNIX->new(Type => SOCK_STREAM, Peer => $address->{path}, Timeout => $timeout_s)
        if defined($address->{path});
    return IO::Socket::IP->new(
        Type => SOCK_STREAM,
        PeerHost => $address->{host},
        PeerPort => $address->{port},
        Timeout => $timeout_s,
    );
}

sub _connect {
    my ($self, $address) = @_;

    my $timeout_s = $self->{timeout_s} < CONNECT_TIMEOUT_S ? $self->{timeout_s} : CONNECT_TIMEOUT_S;
    my $socket = _open($address, $timeout_s);
    if (!$socket) {
        my $why = $! || $@ || 'no connection';
        die "cannot reach Forebay at $address->{text} ($why): start the server, or correct 'forebay-api'\n";
    }
    $socket = _start_tls($socket, $address, $timeout_s) if $address->{tls};
    $socket->blocking(0);
    return $socket;
}

sub _start_tls {
    my ($socket, $address, $timeout_s) = @_;

    # Only a part of the installations needs it.
    require IO::Socket::SSL;
    my $tls = IO::Socket::SSL->start_SSL(
        $socket,
        Timeout => $timeout_s,
        SSL_verify_mode => IO::Socket::SSL::SSL_VERIFY_PEER(),
        SSL_verifycn_scheme => 'http',
        SSL_verifycn_name => $address->{host},
        SSL_hostname => $address->{host} =~ m/\A[0-9.]+\z|:/ ? '' : $address->{host},
        (defined($address->{ca}) ? (SSL_ca_file => $address->{ca}) : ()),
    );
    return $tls if $tls;
    my $why = IO::Socket::SSL::errstr();
    die "cannot reach Forebay at $address->{text} ($why): check its certificate and 'forebay-ca-file'\n";
}

# The header that identifies this client.
sub _authorization {
    my ($address) = @_;

    my $file = $address->{token} // return '';
    open(my $in, '<', $file) or die "cannot read the token of Forebay in $file ($!): correct 'forebay-token-file'\n";
    my $mode = S_IMODE((stat($in))[2]);
    die sprintf("%s can be read by others (mode %04o): run 'chmod 600' on it, and replace the token\n", $file, $mode) if $mode & (S_IRWXG | S_IRWXO);
    my $token = <$in> // '';
    close($in);
    $token =~ m/\A(?:\xef\xbb\xbf)?([A-Za-z0-9_-]+)\s*\z/ or die "$file has no token: write the output of 'forebay token create' to it\n";
    return "Authorization: Bearer $1\r\n";
}

# HTTP/1.0: the reply ends with the connection and is not chunked.
sub _request {
    my ($address, $method, $path, $body) = @_;

    my $host = 'localhost';
    if (defined($address->{host})) {
        $host = $address->{host} =~ m/:/ ? "[$address->{host}]" : $address->{host};
        $host .= ":$address->{port}";
    }
    my $content = defined($body) ? encode_json($body) : '';
    my $head = "$method /api/v1$path HTTP/1.0\r\nHost: $host\r\nX-Forebay: 1\r\nAccept: application/json\r\n";
    $head .= _authorization($address);
    if (defined($body)) {
        $head .= "Content-Type: application/json\r\nContent-Length: " . length($content) . "\r\n";
    }
    return "$head\r\n$content";
}

sub _send {
    my ($socket, $bytes, $deadline) = @_;

    while (length($bytes)) {
        _wait(can_write => $socket, $deadline);
        my $sent = $socket->syswrite($bytes);
        if (defined($sent)) {
            substr($bytes, 0, $sent, '');
        } elsif (!$!{EINTR} && !$!{EAGAIN}) {
            # The server may have answered before it closed the connection.
            return;
        }
    }
    return;
}

sub _receive {
    my ($socket, $deadline) = @_;

    my $reply = '';
    while (1) {
        _wait(can_read => $socket, $deadline);
        my $read = $socket->sysread($reply, 1 << 16, length($reply));
        if (defined($read)) {
            last if $read == 0;
            die "the reply is too long\n" if length($reply) > MAX_REPLY_BYTES;
        } elsif (!$!{EINTR} && !$!{EAGAIN}) {
            die "the connection broke ($!)\n";
        }
    }
    return $reply;
}

sub _wait {
    my ($ready, $socket, $deadline) = @_;

    # Of a record of TLS, a part may have been read.
    return if $ready eq 'can_read' && $socket->isa('IO::Socket::SSL') && $socket->pending();
    my $select = IO::Select->new($socket);
    while (1) {
        my $left_s = $deadline - time();
        die "no answer in time\n" if $left_s <= 0;
        return if $select->$ready($left_s);
    }
    return;
}

sub _parse {
    my ($reply) = @_;

    my ($head, $body) = split(/\r?\n\r?\n/, $reply, 2);
    die "the connection was closed without an answer\n" if !length($head // '');
    my ($status) = $head =~ m!\AHTTP/1\.[01] (\d{3})!;
    die "the reply is not HTTP; is this the address of its API?\n" if !defined($status);
    my ($length) = $head =~ m/^content-length:\s*(\d+)\s*$/im;
    # A list without the disks of some shards would look as if these disks did not exist.
    die "no node serves the shards $1 now: try again in some seconds\n"
        if $head =~ m/^forebay-missing-shards:\s*([0-9][0-9, ]*?)\s*$/im;
    die "the reply is incomplete\n" if !defined($body) || (defined($length) && length($body) != $length);
    return ($status, $body);
}

1;
