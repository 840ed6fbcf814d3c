package Registered;

# For `perl -M`: PVE's storage layer with this plug-in, as its loader does.

use strict;
use warnings;

use Fixture qw(plugin);

plugin();

1;
