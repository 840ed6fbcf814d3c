package Registered;

# For `perl -M`: PVE's storage layer with this plug-in, in the way of its own loader.

use strict;
use warnings;

use Fixture qw(plugin);

plugin();

1;
