# Makes the PNG files of the CSV files beside it: gnuplot figures.gp
set datafile separator ','
set datafile missing ''
set style fill solid 0.8 border -1
set grid ytics lc rgb '#dddddd'
set key outside top center horizontal
set datafile missing NaN

set terminal pngcairo noenhanced size 720,480 font 'sans,11' background rgb 'white'
set output 'fleet-nodes.png'
set title 'Refused at 90 % load, weights up to 2 s old'
set xlabel 'nodes'
set ylabel '% refused'
set logscale x
set yrange [0:*]
plot for [a=0:5] 'fleet.csv' using (strcol(1) eq 'nodes' && $3 == a ? $2 : NaN):7 with linespoints lw 2 title a == 0 ? 'planner that sees all' : sprintf('%d asked at most', a)
unset logscale x

set terminal pngcairo noenhanced size 720,480 font 'sans,11' background rgb 'white'
set output 'fleet-load.png'
set title '100 nodes: refused by load, weights up to 2 s old'
set xlabel 'load that is offered, % of capacity'
set ylabel '% refused'
plot for [a in '0 1 3 5'] 'fleet.csv' using (strcol(1) eq 'load' && strcol(3) eq a ? 100 * $4 : NaN):7 with linespoints lw 2 title a eq '0' ? 'planner that sees all' : a.' asked at most'

set terminal pngcairo noenhanced size 720,480 font 'sans,11' background rgb 'white'
set output 'fleet-age.png'
set title '100 nodes at 90 % load: refused by age of the weights'
set xlabel 's between two readings of a weight'
set ylabel '% refused'
set logscale x
plot for [a in '1 5'] 'fleet.csv' using (strcol(1) eq 'age' && strcol(3) eq a ? $5 : NaN):7 with linespoints lw 2 title a.' asked at most'
unset logscale x
