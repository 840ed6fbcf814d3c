#!/usr/bin/perl
# PVE's own tests of its storage plug-ins pass with this one next to them. Needs PVE_SOURCES.

use strict;
use warnings;

use FindBin;
use Test::More;

my $tests = "$ENV{PVE_SOURCES}/pve-storage/src/test";
chdir($tests) or die "$tests: $!\n";
$ENV{PERL5LIB} = "$FindBin::Bin/../lib";
$ENV{PERL5OPT} = '-MRegistered';
for my $name (qw(run_plugin_tests.pl run_bwlimit_tests.pl run_volume_access_tests.pl)) {
    my $output = qx(perl ./$name 2>&1);
    is($?, 0, $name) or diag($output);
}

done_testing();
