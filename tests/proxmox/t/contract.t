#!/usr/bin/perl
# The assumptions about PVE that the modules in contract/ make. They hold there by construction; with PVE_SOURCES this
# test checks them on PVE's own modules.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";
use Fixture qw(plugin real refused scratch);
use Test::More;

my $plugin = plugin();
my $dir = scratch();

is(PVE::Storage->APIVER() >= 9, 1, 'the version of the API');
is(PVE::Storage::Plugin::get_next_vm_diskname(['vm-1-disk-0', 'base-1-disk-1', 'vm-2-disk-2', 'vm-1-cloudinit'], 'fb', 1, undef, { type => 'forebay' }),
    'vm-1-disk-2', 'names of templates are taken');

open(my $stream, '+>', "$dir/stream") or die "stream: $!\n";
PVE::Storage::Plugin::write_common_header($stream, 1 << 40);
sysseek($stream, 0, 0);
is(PVE::Storage::Plugin::read_common_header($stream), 1 << 40, 'sizes in streams');

like(refused(sub { PVE::Tools::run_command(['false']) }), qr/failed: exit code 1/, 'a program that fails');
is(refused(sub { PVE::Tools::run_command(['true']) }), 'not refused', 'one that succeeds');
open(my $output, '>', "$dir/output") or die "output: $!\n";
PVE::Tools::run_command(['printf', '%s', '$(id); *'], output => '>&' . fileno($output));
close($output) or die "output: $!\n";
is(-s "$dir/output", 8, 'arguments pass no shell');

is(PVE::Tools::lock_file("$dir/lock", 5, sub { return "of @_" }, 1, 2), 'of 1 2', 'the result of code under a lock');
is(PVE::Tools::lock_file("$dir/lock", 5, sub { die "reason\n" }), undef, 'none of code that fails');
is($@, "reason\n", 'but the reason');

if (real()) {
    my $methods = sub { no strict 'refs'; return grep { defined(&{"$_[0]::$_"}) } keys %{"$_[0]::"} };
    # Directories, free names with formats, notes, backups and providers of them do not concern block storage.
    my %not_ours = map { $_ => 1 } qw(
        get_subdir get_vtype_subdirs get_volume_notes update_volume_notes get_volume_attribute
        update_volume_attribute list_volumes prune_backups new_backup_provider get_identity
        on_update_hook on_delete_hook cluster_lock_storage get_formats storage_can_replicate
        parse_section_header decode_value encode_value parse_config private file_size_info
    );
    my %own = map { $_ => 1 } $methods->($plugin);
    my @methods = grep { m/\A(?:volume_|map_|unmap_|activate_|deactivate_|qemu_|rename_|list_images|status|path|
        filesystem_path|alloc_image|free_image|clone_image|create_base|parse_volname|check_connection|find_free)/x }
        $methods->('PVE::Storage::Plugin');
    is_deeply([sort grep { !$own{$_} && !$not_ours{$_} } @methods], [], 'no method of the base class for files is left');
}

done_testing();
