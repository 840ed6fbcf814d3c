package PVE::Storage::Custom::ForebayPlugin;

# Forebay as a storage of Proxmox VE. QEMU opens volumes over NBD, containers through /dev/nbdN; all other work are
# requests to the server's API.
#
# How names map, with N as an optional prefix, `forebay-namespace` and a dot:
#
#   PVE                                 Forebay
#   vm-100-disk-0                       volume   Nvm-100-disk-0
#   vm-100-disk-0, snapshot daily       snapshot Nvm-100-disk-0@daily
#   base-100-disk-0                     image    Nbase-100-disk-0
#   base-100-disk-0/vm-101-disk-0       volume   Nvm-101-disk-0, a clone of that image
#
# No more is stored, here or there: whether a volume is a linked clone follows from its origin. The server decides
# about names: it refuses one that is taken, so that two allocations never get the same volume, whichever locks PVE
# holds. Volumes with other names belong to others, and are neither listed nor touched.

use strict;
use warnings;

use POSIX ();

use PVE::Storage::Plugin;
use PVE::Tools qw(run_command);

use Forebay::Proxmox::Api;
use Forebay::Proxmox::Devices;
use Forebay::Proxmox::Settings;

use base qw(PVE::Storage::Plugin);

# The versions of PVE's storage API for which this file is written. All methods have the arguments of the newest one;
# older ones pass fewer.
use constant OLDEST_API => 9;
use constant NEWEST_API => 15;

# Names that are tried when other clients of the server take the free ones at the same time: as many as PVE gives to the
# disks of one guest. Each one that is taken is another client's success.
use constant NAME_ATTEMPTS => 1024;

# Status is queried every few seconds for all storages, one after the other.
use constant STATUS_TIMEOUT_S => 5;

my $VOLUME = qr/(vm|base)-([1-9][0-9]{0,8})-[A-Za-z0-9][A-Za-z0-9_.-]{0,127}/;
my $SNAPSHOT = qr/[A-Za-z0-9_][A-Za-z0-9_-]{0,127}/;

# Configuration

sub api {
    my $running = PVE::Storage->can('APIVER') ? PVE::Storage->APIVER() : NEWEST_API;

    return NEWEST_API if $running > NEWEST_API;
    return OLDEST_API if $running < OLDEST_API;
    return $running;
}

sub type {
    return 'forebay';
}

sub plugindata {
    return {
        content => [{ images => 1, rootdir => 1 }, { images => 1 }],
        format => [{ raw => 1 }, 'raw'],
        'sensitive-properties' => {},
    };
}

sub properties {
    return Forebay::Proxmox::Settings::properties();
}

sub options {
    return Forebay::Proxmox::Settings::options();
}

sub on_add_hook {
    my ($class, $storeid, $scfg) = @_;

    Forebay::Proxmox::Settings::check_new($storeid, $scfg);
    return;
}

# The token does not outlive its storage: another one of the same name could have another server.
sub on_delete_hook {
    my ($class, $storeid, $scfg) = @_;

    my $file = Forebay::Proxmox::Settings::token_file($storeid);
    return if ($scfg->{'forebay-token-file'} // '') ne $file;
    unlink($file) or $!{ENOENT} or warn "cannot remove the token of the storage in $file: $!\n";
    return;
}

sub on_update_hook_full {
    my ($class, $storeid, $scfg, $updates, $deletes) = @_;

    my %changed = (%$scfg, %$updates);
    delete @changed{ @{ $deletes // [] } };
    Forebay::Proxmox::Settings::parse(\%changed);
    return;
}

# Names

sub parse_volname {
    my ($class, $volname) = @_;

    my ($base, $name) = $volname =~ m!\A(?:([^/]*)/)?([^/]*)\z!;
    if (defined($name) && $name =~ m/\A($VOLUME)\z/) {
        my ($disk, $kind, $vmid) = ($1, $2, $3);
        my $is_base = $kind eq 'base' ? 1 : undef;
        return ('images', $disk, $vmid, undef, undef, $is_base, 'raw') if !defined($base);
        return ('images', $disk, $vmid, $1, $3, $is_base, 'raw') if $base =~ m/\A($VOLUME)\z/ && $2 eq 'base';
    }
    die "'$volname' is not the name of a volume on Forebay, such as vm-100-disk-0\n";
}

# The name on the server, of the volume, image or snapshot.
my sub disk_name {
    my ($settings, $name, $snapname) = @_;

    return "$settings->{prefix}$name" if !length($snapname // '');
    $snapname =~ m/\A($SNAPSHOT)\z/ or die "'$snapname' is not a valid name of a snapshot\n";
    return "$settings->{prefix}$name\@$1";
}

# The name in PVE of a disk on the server, or undef if it is not one of this storage.
my sub pve_name {
    my ($settings, $disk) = @_;

    return $disk =~ m/\A\Q$settings->{prefix}\E($VOLUME)\z/ ? $1 : undef;
}

my sub disk_path {
    my ($settings, $name, $is_base) = @_;

    return ($is_base ? '/images/' : '/volumes/') . Forebay::Proxmox::Api::escape(disk_name($settings, $name));
}

my sub connect_api {
    my ($scfg, $timeout_s) = @_;

    my $settings = Forebay::Proxmox::Settings::parse($scfg);
    return ($settings, Forebay::Proxmox::Api->new($settings->{apis}, $timeout_s));
}

# The disks of this storage by their names in PVE. `$cache` lives as long as one operation of PVE.
my sub list_disks {
    my ($storeid, $scfg, $cache) = @_;

    my $known = $cache && $cache->{"forebay:$storeid"};
    return $known if $known;
    my ($settings, $api) = connect_api($scfg);
    my $disks = {};
    for my $disk (@{ $api->call(GET => '/images') }, @{ $api->call(GET => '/volumes') }) {
        my $name = pve_name($settings, $disk->{name}) // next;
        $disks->{$name} = $disk;
        my $origin = $disk->{origin} // next;
        my ($of, $snapname) = split(/@/, $origin, 2);
        my $parent = pve_name($settings, $of) // next;
        $disk->{parent} = defined($snapname) ? "$parent\@$snapname" : $parent;
    }
    $cache->{"forebay:$storeid"} = $disks if $cache;
    return $disks;
}

sub find_free_diskname {
    my ($class, $storeid, $scfg, $vmid) = @_;

    my @names = keys %{ list_disks($storeid, $scfg) };
    return PVE::Storage::Plugin::get_next_vm_diskname(\@names, $storeid, $vmid, undef, $scfg);
}

# Calls `$create` with the requested name, or with free ones until one is not taken. Returns the name.
my sub with_free_name {
    my ($class, $storeid, $scfg, $vmid, $name, $create) = @_;

    for (1 .. NAME_ATTEMPTS) {
        my $chosen = $name // $class->find_free_diskname($storeid, $scfg, $vmid);
        my (undef, $error) = $create->($chosen);
        return $chosen if !$error;
        die "$error->{message}\n" if defined($name) || $error->{code} ne 'exists';
    }
    die "other clients take all free names of guest $vmid; try again\n";
}

# Volumes

sub alloc_image {
    my ($class, $storeid, $scfg, $vmid, $fmt, $name, $size_kib) = @_;

    die "format '$fmt' is not supported: volumes on Forebay are raw\n" if defined($fmt) && $fmt ne 'raw';
    die "size '$size_kib' is not valid\n" if $size_kib !~ m/\A([1-9][0-9]{0,15})\z/;
    my $size_bytes = int($1) * 1024;
    if (defined($name)) {
        my (undef, undef, $owner, $base, undef, $is_base) = $class->parse_volname($name);
        die "'$name' is not valid: names of guest $vmid begin with vm-$vmid-\n"
            if $is_base || $base || $owner ne $vmid;
    }

    my ($settings, $api) = connect_api($scfg);
    return with_free_name(
        $class, $storeid, $scfg, $vmid, $name,
        sub {
            my ($chosen) = @_;
            my $disk = disk_name($settings, $chosen);
            return $api->attempt(
                POST => '/volumes',
                { name => $disk, size_bytes => $size_bytes, sync => $settings->{sync} },
            );
        },
    );
}

sub clone_image {
    my ($class, $scfg, $storeid, $volname, $vmid, $snapname) = @_;

    my (undef, $source, undef, undef, undef, $is_base) = $class->parse_volname($volname);
    my $of_snapshot = length($snapname // '');
    die "'$volname' is neither a template nor a snapshot: linked clones need one\n" if !$is_base && !$of_snapshot;

    my ($settings, $api) = connect_api($scfg);
    my $clone = { source => disk_name($settings, $source, $snapname) };
    if (my $desktops = $settings->{desktops}) {
        $clone = { %$clone, %$desktops };
    } else {
        $clone->{sync} = $settings->{sync};
    }
    my $name = with_free_name(
        $class, $storeid, $scfg, $vmid, undef,
        sub {
            my ($chosen) = @_;
            return $api->attempt(POST => '/clones', { %$clone, name => disk_name($settings, $chosen) });
        },
    );
    return $of_snapshot ? $name : "$source/$name";
}

# An image is made of the volume, which is removed. If that is not possible the image is removed instead.
sub create_base {
    my ($class, $storeid, $scfg, $volname) = @_;

    my (undef, $name, undef, undef, undef, $is_base) = $class->parse_volname($volname);
    die "'$volname' is a template already\n" if $is_base;
    $class->unmap_volume($storeid, $scfg, $volname);

    my ($settings, $api) = connect_api($scfg);
    my $base = $name =~ s/\Avm-/base-/r;
    my $image_path = disk_path($settings, $base, 1);
    $api->call(POST => $image_path, { source => disk_name($settings, $name) });
    _remove_or_undo($api, disk_path($settings, $name), $image_path);
    return $base;
}

# Contents, limits and origin stay with the volume.
sub rename_volume {
    my ($class, $scfg, $storeid, $source_volname, $target_vmid, $target_volname) = @_;

    my (undef, $source, undef, $base, undef, $is_base) = $class->parse_volname($source_volname);
    die "'$source_volname' is a template: it cannot be renamed\n" if $is_base;
    if (defined($target_volname)) {
        my (undef, undef, undef, $target_base, undef, $target_is_base) = $class->parse_volname($target_volname);
        die "'$target_volname' is not valid as a new name: use one like vm-100-disk-0\n"
            if $target_base || $target_is_base;
    }
    $class->unmap_volume($storeid, $scfg, $source_volname);

    my ($settings, $api) = connect_api($scfg);
    my $path = disk_path($settings, $source);
    # The configuration of another guest does not have them.
    die "'$source_volname' has snapshots: it cannot be renamed\n" if $api->call(GET => $path)->{snapshots};
    my $name = with_free_name(
        $class, $storeid, $scfg, $target_vmid, $target_volname,
        sub {
            my ($chosen) = @_;
            return $api->attempt(POST => "$path/rename", { name => disk_name($settings, $chosen) });
        },
    );
    return defined($base) ? "$storeid:$base/$name" : "$storeid:$name";
}

# Removes the disk at `$old_path`, or dies after it removed that at `$new_path`.
sub _remove_or_undo {
    my ($api, $old_path, $new_path) = @_;

    my (undef, $error) = $api->attempt(DELETE => $old_path);
    return if !$error;
    eval { $api->call(DELETE => $new_path) };
    warn "cannot undo: $@" if $@;
    die "$error->{message}\n";
}

# All snapshots go with their volume, unless one of them is needed: then nothing is removed.
sub free_image {
    my ($class, $storeid, $scfg, $volname) = @_;

    my (undef, $name, undef, undef, undef, $is_base) = $class->parse_volname($volname);
    $class->unmap_volume($storeid, $scfg, $volname);

    my ($settings, $api) = connect_api($scfg);
    my $path = disk_path($settings, $name, $is_base);
    my $disk = $api->call(GET => $path);
    if ($disk->{snapshots}) {
        my @snapshots = @{ $api->call(GET => "$path/snapshots") };
        for my $snapshot (@snapshots) {
            die "'$snapshot->{name}' has linked clones: remove them first\n" if $snapshot->{clones};
        }
        die "'$volname' is in use: stop its guest first\n" if $disk->{clients};
        for my $snapshot (@snapshots) {
            my (undef, $snapname) = split(/@/, $snapshot->{name}, 2);
            $api->call(DELETE => "$path/snapshots/" . Forebay::Proxmox::Api::escape($snapname));
        }
    }
    $api->call(DELETE => $path);
    return undef;
}

sub list_images {
    my ($class, $storeid, $scfg, $vmid, $vollist, $cache) = @_;

    my %wanted = map { $_ => 1 } @{ $vollist // [] };
    my $disks = list_disks($storeid, $scfg, $cache);
    my $images = [];
    for my $name (sort keys %$disks) {
        my $disk = $disks->{$name};
        my (undef, undef, $owner, undef, undef, $is_base) = $class->parse_volname($name);
        # An image named vm-* or a volume named base-* was not made by PVE.
        next if ($disk->{kind} eq 'image') != ($is_base // 0);
        my $parent = $disk->{parent};
        my $volid = defined($parent) && $parent =~ m/\Abase-/ ? "$storeid:$parent/$name" : "$storeid:$name";
        next if $vollist ? !$wanted{$volid} : defined($vmid) && $owner ne $vmid;
        push @$images, {
            volid => $volid,
            name => $name,
            vmid => $owner,
            format => 'raw',
            size => $disk->{size_bytes},
            parent => $parent,
            ctime => int($disk->{created_ms} / 1000),
        };
    }
    return $images;
}

sub volume_size_info {
    my ($class, $scfg, $storeid, $volname, $timeout_s) = @_;

    my (undef, $name, undef, undef, undef, $is_base) = $class->parse_volname($volname);
    my ($settings, $api) = connect_api($scfg, $timeout_s);
    my $disk = $api->call(GET => disk_path($settings, $name, $is_base));
    return $disk->{size_bytes} if !wantarray;

    # Not known before the server has counted it for the first time.
    my $stats = $api->call(GET => '/stats/' . Forebay::Proxmox::Api::escape($disk->{name}));
    my $used_bytes = $stats->{space} ? $stats->{space}->{mapped_bytes} : 0;
    my $parent = $disk->{origin};
    $parent =~ s/\A\Q$settings->{prefix}\E// if defined($parent);
    return ($disk->{size_bytes}, 'raw', $used_bytes, $parent, int($disk->{created_ms} / 1000));
}

# QEMU's NBD client and qemu-nbd keep the size that a volume had when they connected.
sub volume_resize {
    my ($class, $scfg, $storeid, $volname, $size_bytes, $running, $snapname) = @_;

    die "snapshots cannot be resized\n" if length($snapname // '');
    my (undef, $name, undef, undef, undef, $is_base) = $class->parse_volname($volname);
    die "'$volname' is a template: it cannot be resized\n" if $is_base;
    die "size '$size_bytes' is not valid\n" if $size_bytes !~ m/\A([1-9][0-9]{0,18})\z/;
    $size_bytes = int($1);

    my ($settings, $api) = connect_api($scfg);
    my $path = disk_path($settings, $name);
    my $disk = $api->call(GET => $path);
    die "volumes on Forebay are resized while their guest is stopped: shut it down, and repeat\n"
        if $running || $disk->{clients};
    die "'$volname' has $disk->{size_bytes} bytes: it cannot shrink to $size_bytes\n"
        if $size_bytes < $disk->{size_bytes};
    $api->call(POST => "$path/resize", { size_bytes => $size_bytes });
    return undef;
}

# Snapshots

sub volume_snapshot {
    my ($class, $scfg, $storeid, $volname, $snap) = @_;

    my (undef, $name) = $class->parse_volname($volname);
    my ($settings, $api) = connect_api($scfg);
    disk_name($settings, $name, $snap);
    $api->call(POST => disk_path($settings, $name) . '/snapshots', { name => $snap });
    return undef;
}

sub volume_snapshot_rollback {
    my ($class, $scfg, $storeid, $volname, $snap) = @_;

    my (undef, $name) = $class->parse_volname($volname);
    my ($settings, $api) = connect_api($scfg);
    disk_name($settings, $name, $snap);
    $class->unmap_volume($storeid, $scfg, $volname);
    $api->call(POST => disk_path($settings, $name) . '/rollback', { snapshot => $snap });
    return undef;
}

# Any snapshot can be rolled back to; later ones stay.
sub volume_rollback_is_possible {
    my ($class, $scfg, $storeid, $volname, $snap, $blockers) = @_;

    return 1;
}

sub volume_snapshot_delete {
    my ($class, $scfg, $storeid, $volname, $snap, $running) = @_;

    my (undef, $name) = $class->parse_volname($volname);
    my ($settings, $api) = connect_api($scfg);
    disk_name($settings, $name, $snap);
    $class->unmap_volume($storeid, $scfg, $volname, $snap);
    my $path = disk_path($settings, $name) . '/snapshots/' . Forebay::Proxmox::Api::escape($snap);
    $api->call(DELETE => $path);
    return undef;
}

sub volume_snapshot_info {
    my ($class, $scfg, $storeid, $volname) = @_;

    my (undef, $name, undef, undef, undef, $is_base) = $class->parse_volname($volname);
    return {} if $is_base;
    my ($settings, $api) = connect_api($scfg);
    my $info = {};
    for my $snapshot (@{ $api->call(GET => disk_path($settings, $name) . '/snapshots') }) {
        my (undef, $snapname) = split(/@/, $snapshot->{name}, 2);
        $info->{$snapname} = {
            id => $snapshot->{uuid},
            timestamp => int($snapshot->{created_ms} / 1000),
            'virtual-size' => $snapshot->{size_bytes},
        };
    }
    return $info;
}

# Version 9 of the API.
sub volume_snapshot_list {
    my ($class, $scfg, $storeid, $volname) = @_;

    my $info = $class->volume_snapshot_info($scfg, $storeid, $volname);
    return [sort { $info->{$a}->{timestamp} <=> $info->{$b}->{timestamp} || $a cmp $b } keys %$info];
}

# The file system of a container is mounted on the node, which may hold writes back.
sub volume_snapshot_needs_fsfreeze {
    return 1;
}

# The server takes snapshots of volumes in use.
sub volume_qemu_snapshot_method {
    return 'storage';
}

sub rename_snapshot {
    my ($class) = @_;

    die "snapshots on Forebay cannot be renamed\n";
}

sub volume_has_feature {
    my ($class, $scfg, $feature, $storeid, $volname, $snapname, $running) = @_;

    my $features = {
        snapshot => { current => 1, snap => 1 },
        clone => { base => 1, snap => 1 },
        template => { current => 1 },
        copy => { base => 1, current => 1, snap => 1 },
        sparseinit => { base => 1, current => 1 },
        rename => { current => 1 },
    };
    my (undef, $name, undef, $base, undef, $is_base) = $class->parse_volname($volname);
    my $state = length($snapname // '') ? 'snap' : $is_base ? 'base' : 'current';
    return undef if !$features->{$feature}->{$state};
    return 1 if $feature eq 'copy' || $feature eq 'sparseinit' || !$base;

    # A desktop has no snapshots, and nothing can be made from it.
    my ($settings, $api) = connect_api($scfg);
    my $disk = $api->call(GET => disk_path($settings, $name));
    return defined($disk->{write_cache_bytes}) ? undef : 1;
}

# Access

# The address for NBD. A client of several nodes gets the first one that accepts connections: it stays with this node,
# since QEMU connects again to the same address.
my sub nbd_address {
    my ($settings) = @_;

    my @nbds = @{ $settings->{nbds} };
    return $nbds[0] if @nbds == 1;
    for my $nbd (@nbds) {
        return $nbd if Forebay::Proxmox::Api::is_reachable($nbd);
    }
    return $nbds[0];
}

sub path {
    my ($class, $scfg, $volname, $storeid, $snapname) = @_;

    my ($vtype, $name, $vmid) = $class->parse_volname($volname);
    my $settings = Forebay::Proxmox::Settings::parse($scfg);
    my $export = disk_name($settings, $name, $snapname);
    my $nbd = nbd_address($settings);
    my $uri;
    if (defined($nbd->{path})) {
        $uri = "nbd+unix:///$export?socket=$nbd->{path}";
    } else {
        my $host = $nbd->{host} =~ m/:/ ? "[$nbd->{host}]" : $nbd->{host};
        $uri = "nbd://$host:$nbd->{port}/$export";
    }
    return wantarray ? ($uri, $vmid, $vtype) : $uri;
}

sub filesystem_path {
    my ($class, $scfg, $volname, $snapname) = @_;

    return $class->path($scfg, $volname, undef, $snapname);
}

# QAPI requires strings and integers as such, in JSON.
my sub blockdev {
    my ($settings, $export) = @_;

    my $nbd = nbd_address($settings);
    my $server = defined($nbd->{path})
        ? { type => 'unix', path => "$nbd->{path}" }
        : { type => 'inet', host => "$nbd->{host}", port => "$nbd->{port}" };
    return {
        driver => 'nbd',
        server => $server,
        export => "$export",
        'reconnect-delay' => int($settings->{reconnect_delay_s}),
    };
}

sub qemu_blockdev_options {
    my ($class, $scfg, $storeid, $volname, $machine_version, $options) = @_;

    my (undef, $name) = $class->parse_volname($volname);
    my $settings = Forebay::Proxmox::Settings::parse($scfg);
    return blockdev($settings, disk_name($settings, $name, $options->{'snapshot-name'}));
}

my sub label {
    my ($storeid, $export) = @_;

    return "forebay:$storeid:$export";
}

sub map_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $hints) = @_;

    my (undef, $name, undef, undef, undef, $is_base) = $class->parse_volname($volname);
    my $settings = Forebay::Proxmox::Settings::parse($scfg);
    my $export = disk_name($settings, $name, $snapname);
    my $blockdev = blockdev($settings, $export);
    my $server = delete $blockdev->{server};
    my %flat = (%$blockdev, map { ("server.$_" => $server->{$_}) } keys %$server);
    my $image = join(',', 'driver=raw', map { "file.$_=$flat{$_}" } sort keys %flat);
    return Forebay::Proxmox::Devices::attach(label($storeid, $export), $image, $is_base || $export =~ m/@/);
}

sub unmap_volume {
    my ($class, $storeid, $scfg, $volname, $snapname) = @_;

    my (undef, $name) = $class->parse_volname($volname);
    my $settings = Forebay::Proxmox::Settings::parse($scfg);
    Forebay::Proxmox::Devices::detach(label($storeid, disk_name($settings, $name, $snapname)));
    return 1;
}

# Reports what is missing before a guest starts, rather than in the words of QEMU.
sub activate_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $cache, $hints) = @_;

    my (undef, $name, undef, undef, undef, $is_base) = $class->parse_volname($volname);
    my ($settings, $api) = connect_api($scfg);
    if (length($snapname // '')) {
        my $export = disk_name($settings, $name, $snapname);
        my $snapshots = $api->call(GET => disk_path($settings, $name) . '/snapshots');
        die "there is no snapshot '$snapname' of '$volname'\n" if !grep { $_->{name} eq $export } @$snapshots;
    } else {
        $api->call(GET => disk_path($settings, $name, $is_base));
    }
    return 1;
}

sub deactivate_volume {
    my ($class, $storeid, $scfg, $volname, $snapname, $cache) = @_;

    return $class->unmap_volume($storeid, $scfg, $volname, $snapname);
}

# The storage

# Dies with the reason, which PVE reports, if the server cannot be used.
sub check_connection {
    my ($class, $storeid, $scfg) = @_;

    my ($settings, $api) = connect_api($scfg, STATUS_TIMEOUT_S);
    my $server = $api->call(GET => '/capacity');
    die "the server has the pool '$server->{pool}' instead of '$settings->{pool}'; correct forebay-pool or forebay-api\n"
        if defined($settings->{pool}) && $server->{pool} ne $settings->{pool};
    return 1;
}

sub activate_storage {
    my ($class, $storeid, $scfg, $cache) = @_;

    return 1;
}

sub deactivate_storage {
    my ($class, $storeid, $scfg, $cache) = @_;

    return 1;
}

sub status {
    my ($class, $storeid, $scfg, $cache) = @_;

    my ($settings, $api) = connect_api($scfg, STATUS_TIMEOUT_S);
    my $capacity = $api->call(GET => '/capacity');
    my ($total, $free) = ($capacity->{total_bytes}, $capacity->{free_bytes});
    return ($total, $free, $total - $free, 1);
}

# Moving volumes to and from other storages

sub volume_export_formats {
    my ($class, $scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots) = @_;

    return if defined($base_snapshot) || $with_snapshots;
    return ('raw+size');
}

sub volume_import_formats {
    my ($class, $scfg, $storeid, $volname, $snapshot, $base_snapshot, $with_snapshots) = @_;

    return if defined($base_snapshot) || $with_snapshots;
    return ('raw+size');
}

# Copies `$size_bytes` from one file to another. False if one of them ends or fails before.
my sub pump {
    my ($from, $to, $size_bytes) = @_;

    while ($size_bytes > 0) {
        my $most = $size_bytes < 1 << 20 ? $size_bytes : 1 << 20;
        my $read = sysread($from, my $buffer, $most) or return 0;
        for (my $done = 0; $done < $read;) {
            $done += syswrite($to, $buffer, $read - $done, $done) // return 0;
        }
        $size_bytes -= $read;
    }
    return sysread($from, my $more, 1) == 0;
}

# Runs nbdcopy between an export and a stream of exactly `$size_bytes`. A process with a pipe stands between them: of a
# file, such as that of `pvesm export`, nbdcopy would use the start instead of the part behind the header, and it cannot
# know whether a stream was cut.
my sub copy_stream {
    my ($stream, $is_import, $size_bytes, @arguments) = @_;

    pipe(my $out, my $in) or die "cannot make a pipe: $!\n";
    my $pid = fork() // die "cannot start a process: $!\n";
    if ($pid == 0) {
        close($is_import ? $out : $in);
        my $done = $is_import ? pump($stream, $in, $size_bytes) : pump($out, $stream, $size_bytes);
        POSIX::_exit($done ? 0 : 1);
    }
    if ($is_import) {
        close($in);
        eval { run_command(['nbdcopy', @arguments], input => '<&' . fileno($out)) };
    } else {
        eval { run_command(['nbdcopy', @arguments], output => '>&' . fileno($in)) };
        close($in);
    }
    my $err = $@;
    close($out);
    waitpid($pid, 0);
    my $complete = $? == 0;
    die $err if $err;
    die "the stream does not have the $size_bytes bytes that it should have\n" if !$complete;
    return;
}

my sub check_transfer {
    my ($format, $base_snapshot, $with_snapshots) = @_;

    die "format '$format' is not supported: volumes on Forebay are transferred as raw+size\n"
        if $format ne 'raw+size';
    die "volumes on Forebay are transferred without snapshots\n" if defined($base_snapshot) || $with_snapshots;
    return;
}

sub volume_export {
    my ($class, $scfg, $storeid, $fh, $volname, $format, $snapshot, $base_snapshot, $with_snapshots) = @_;

    check_transfer($format, $base_snapshot, $with_snapshots);
    my $uri = $class->path($scfg, $volname, $storeid, $snapshot);
    my $size_bytes = _transfer_size($class, $scfg, $storeid, $volname, $snapshot);
    PVE::Storage::Plugin::write_common_header($fh, $size_bytes);
    copy_stream($fh, 0, $size_bytes, '--', $uri, '-');
    return;
}

# A snapshot may be smaller than the volume.
sub _transfer_size {
    my ($class, $scfg, $storeid, $volname, $snapshot) = @_;

    return scalar($class->volume_size_info($scfg, $storeid, $volname)) if !defined($snapshot);
    my $info = $class->volume_snapshot_info($scfg, $storeid, $volname)->{$snapshot};
    return $info ? $info->{'virtual-size'} : die "there is no snapshot '$snapshot' of '$volname'\n";
}

sub volume_import {
    my ($class, $scfg, $storeid, $fh, $volname, $format, $snapshot, $base_snapshot, $with_snapshots, $allow_rename) = @_;

    check_transfer($format, $base_snapshot, $with_snapshots);
    my (undef, $name, $vmid, undef, undef, $is_base) = $class->parse_volname($volname);
    my $size_bytes = PVE::Storage::Plugin::read_common_header($fh);

    # A template is imported as a volume first: images are read-only. The copy of a linked clone stands alone.
    my $requested = $name =~ s/\Abase-/vm-/r;
    my $taken = list_disks($storeid, $scfg);
    if ($taken->{$name} || $taken->{$requested}) {
        die "volume '$name' exists already\n" if !$allow_rename;
        warn "volume '$name' exists already: importing with a different name\n";
        $requested = undef;
    }
    my $size_kib = int(($size_bytes + 1023) / 1024);
    my $imported = $class->alloc_image($storeid, $scfg, $vmid, 'raw', $requested, $size_kib);
    eval {
        my $uri = $class->path($scfg, $imported, $storeid);
        copy_stream($fh, 1, $size_bytes, '--flush', '--destination-is-zero', '--', '-', $uri);
        $imported = $class->create_base($storeid, $scfg, $imported) if $is_base;
    };
    if (my $err = $@) {
        eval { $class->free_image($storeid, $scfg, $imported) };
        warn $@ if $@;
        die $err;
    }
    return "$storeid:$imported";
}

1;
